#include "kernels.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace jax_nvfp4::cuda {
namespace {

// GPU family of a compute capability, or nullptr where no kernels exist.
const char* FamilyOf(int major, int minor) {
  for (size_t i = 0; i < kFamilyCount; ++i) {
    if (kFamilies[i].major == major && kFamilies[i].minor == minor) return kFamilies[i].arch;
  }
  return nullptr;
}

// What a kernel is compiled for, without what is uniform over a launch and told at run time: Mode.compiled() in C++.
// A direction that is not there is all zero in the table of variants.
Mode Compiled(Mode mode) {
  if (!mode.grouped()) mode.scope = Scope::kTensor;
  mode.zero_tail = true;
  mode.emax = kNoMode.emax;
  for (Direction* direction : {&mode.row, &mode.col}) {
    if (!direction->present) *direction = {};
    direction->swizzled = false;
    direction->rht = std::min(direction->rht, 0);
  }
  return mode;
}

// The range of kVariants compiled for a family: the table lists one family after the other.
std::pair<size_t, size_t> RangeOf(const char* family) {
  auto matches = [&](const Variant& variant) { return family && std::strcmp(variant.arch, family) == 0; };
  const Variant* begin = std::find_if(kVariants, kVariants + kVariantCount, matches);
  const Variant* end = std::find_if_not(begin, kVariants + kVariantCount, matches);
  return {begin - kVariants, end - kVariants};
}

class Device {
 public:
  explicit Device(int ordinal) : ordinal_(ordinal) {
    cudaDeviceGetAttribute(&major_, cudaDevAttrComputeCapabilityMajor, ordinal);
    cudaDeviceGetAttribute(&minor_, cudaDevAttrComputeCapabilityMinor, ordinal);
    std::tie(begin_, end_) = RangeOf(FamilyOf(major_, minor_));
    loaded_ = std::make_unique<std::atomic<bool>[]>(end_ - begin_);
  }

  ffi::ErrorOr<const Variant*> Find(Kernel kernel, ffi::DataType dtype, const Mode& mode) {
    for (size_t i = begin_; i < end_; ++i) {
      const Variant& variant = kVariants[i];
      if (variant.kernel != kernel || variant.dtype != dtype || !(variant.mode == mode)) continue;
      if (variant.launch == nullptr) {
        return ffi::Unexpected(Missing("jax_nvfp4 was built without ", variant.name, ": reinstall with `",
                                       "JAX_NVFP4_VARIANTS=", variant.name, " pip install .`"));
      }
      if (!loaded_[i - begin_].load(std::memory_order_acquire)) {
        if (ffi::Error error = Load(i); error.failure()) return ffi::Unexpected(error);
      }
      return &variant;
    }
    if (begin_ == end_) return ffi::Unexpected(NoKernels());
    return ffi::Unexpected(Missing("jax_nvfp4 has no kernel ", kKernelNames[static_cast<int>(kernel)], " for ", dtype,
                                   " in this mode: add it to jax_nvfp4/kernels/variants.py and reinstall"));
  }

 private:
  ffi::Error Load(size_t i) {
    // One library object per variant serves all devices. Never freed: kernels outlive every static destructor.
    static std::mutex& mutex = *new std::mutex;
    static auto& libraries = *new std::vector<cudaLibrary_t>(kVariantCount);
    std::lock_guard<std::mutex> lock(mutex);
    if (loaded_[i - begin_]) return ffi::Error::Success();

    // Loading may allocate, which other capture modes forbid while a graph is captured in this or another thread.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    cudaError_t status = cudaSuccess;
    cudaLibrary_t* library = &libraries[i];
    if (*library == nullptr) {
      struct {
        cudaLibrary_t** library;
        cudaError_t* status;
      } arguments = {&library, &status};
      kVariants[i].init(reinterpret_cast<void**>(&arguments));
    }
    if (status == cudaSuccess) {
      int32_t ordinal = ordinal_;
      struct {
        cudaLibrary_t** library;
        int32_t* ordinal;
        cudaError_t* status;
      } arguments = {&library, &ordinal, &status};
      kVariants[i].load(reinterpret_cast<void**>(&arguments));
    }
    cudaThreadExchangeStreamCaptureMode(&mode);
    if (status == cudaSuccess) loaded_[i - begin_].store(true, std::memory_order_release);
    return CheckCuda("loading a kernel", status);
  }

  template <typename... Parts>
  static ffi::Error Missing(const Parts&... parts) {
    std::ostringstream message;
    (message << ... << parts);
    return ffi::Error(ffi::ErrorCode::kUnimplemented, message.str());
  }

  ffi::Error NoKernels() const {
    cudaDeviceProp properties;
    const char* name = cudaGetDeviceProperties(&properties, ordinal_) == cudaSuccess ? properties.name : "this GPU";
    std::string remedy;
    if (const char* family = FamilyOf(major_, minor_)) {
      remedy = std::string("reinstall with JAX_NVFP4_CUDA_ARCHS=") + family + " pip install .";
    } else {
      for (size_t i = 0; i < kFamilyCount; ++i) {
        remedy += (i ? ", " : "there are kernels for compute capability ") + std::to_string(kFamilies[i].major) + "." +
                  std::to_string(kFamilies[i].minor);
      }
      remedy += " only (JAX_NVFP4_CUDA_ARCHS=... pip install . selects among them): run on such a GPU or on CPU";
    }
    return Missing("jax_nvfp4 holds no kernels for device ", ordinal_, ", ", name, " (compute capability ", major_, ".",
                   minor_, "); built in: ", kArchs, "; ", remedy);
  }

  int ordinal_, major_ = 0, minor_ = 0;
  size_t begin_, end_;
  std::unique_ptr<std::atomic<bool>[]> loaded_;
};

}  // namespace

ffi::Error CheckCuda(const char* what, cudaError_t status) {
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string(what) + ": " + cudaGetErrorString(status));
}

ffi::Error Launch(Kernel kernel, ffi::DataType dtype, const Mode& mode, void** arguments, int32_t count,
                  const int32_t& status) {
  static auto& devices = *[] {
    auto* all = new std::vector<Device>;
    int count = 0;
    cudaGetDeviceCount(&count);
    for (int ordinal = 0; ordinal < count; ++ordinal) all->emplace_back(ordinal);
    return all;
  }();
  int ordinal = 0;
  if (ffi::Error error = CheckCuda("finding the current device", cudaGetDevice(&ordinal)); error.failure()) {
    return error;
  }
  ffi::ErrorOr<const Variant*> variant = devices.at(ordinal).Find(kernel, dtype, Compiled(mode));
  if (!variant) return variant.error();
  (*variant)->launch(arguments, count);
  return CheckCuda((*variant)->name, static_cast<cudaError_t>(status));
}

}  // namespace jax_nvfp4::cuda

// The GPU families whose kernels this library holds, comma separated.
extern "C" __attribute__((visibility("default"))) const char* jax_nvfp4_cuda_archs() { return jax_nvfp4::cuda::kArchs; }
