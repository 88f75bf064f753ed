// Which amax covers a row of x: that of its matrix, of its own, or of the group of rows it lies in (docs/numerics.md
// section 10).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "call.h"

namespace jax_nvfp4 {

class Scopes {
 public:
  static constexpr int64_t kTail = -1;  // a row past the last group

  explicit Scopes(const Call& call) : call_(call) {
    if (!call.mode.grouped()) return;
    const int32_t* sizes = call.data<const int32_t>(Role::kGroupSizes);
    ends_.resize(call.scopes());
    for (int64_t i = 0; i < call.scopes(); ++i) {
      ends_[i] = (i % call.groups == 0 ? 0 : ends_[i - 1]) + std::max<int64_t>(0, sizes[i]);
    }
  }

  // The groups must lie inside x, and hold whole blocks where blocks run along the rows.
  ffi::Error Check() const {
    if (!call_.mode.grouped()) return ffi::Error::Success();
    const int32_t* sizes = call_.data<const int32_t>(Role::kGroupSizes);
    const Direction& col = call_.mode.col;
    const int64_t multiple = !col.present ? 1 : col.swizzled ? kSwizzleRows : call_.mode.facts().block;
    for (int64_t i = 0; i < call_.scopes(); ++i) {
      const int64_t group = i % call_.groups;
      if (sizes[i] < 0) return Invalid("group_sizes[", group, "] = ", sizes[i], " is negative");
      if (sizes[i] % multiple != 0) {
        return Invalid("group_sizes[", group, "] = ", sizes[i], " is not a multiple of ", multiple,
                       ", which columnwise blocks need: jax_nvfp4.pad_groups brings groups to one");
      }
      if (ends_[i] > call_.rows) {
        return Invalid("group_sizes add up to more than the ", call_.rows, " rows of x at group ", group);
      }
    }
    return ffi::Error::Success();
  }

  // The index of the amax of a row, or kTail.
  int64_t Of(int64_t batch, int64_t row) const {
    if (call_.mode.row_scope()) return batch * call_.rows + row;
    if (!call_.mode.grouped()) return batch;
    const auto begin = ends_.begin() + batch * call_.groups, end = begin + call_.groups;
    const auto group = std::upper_bound(begin, end, row);
    return group == end ? kTail : group - ends_.begin();
  }

  // The first row of a scope in its matrix, and how many it has.
  int64_t FirstRow(int64_t scope) const {
    if (call_.mode.row_scope()) return scope % call_.rows;
    return call_.mode.grouped() && scope % call_.groups != 0 ? ends_[scope - 1] : 0;
  }
  int64_t Rows(int64_t scope) const {
    if (call_.mode.row_scope()) return 1;
    return call_.mode.grouped() ? ends_[scope] - FirstRow(scope) : call_.rows;
  }
  int64_t Batch(int64_t scope) const { return scope / (call_.scopes() / std::max<int64_t>(1, call_.batch)); }

  // The end of the last group of a matrix.
  int64_t End(int64_t batch) const {
    return call_.mode.grouped() ? (call_.groups ? ends_[(batch + 1) * call_.groups - 1] : 0) : call_.rows;
  }

 private:
  const Call& call_;
  std::vector<int64_t> ends_;  // of every group, in rows of its matrix
};

}  // namespace jax_nvfp4
