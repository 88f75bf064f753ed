#include "device.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

namespace jax_nvfp4::cuda {
namespace {

// GPU family of a compute capability, or nullptr where no kernels exist.
const char* FamilyOf(int major, int minor) {
  if (major == 9 && minor == 0) return "sm_90a";
  if (major == 10 && (minor == 0 || minor == 3)) return "sm_100f";
  if (major == 12) return "sm_120f";
  return nullptr;
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

  ffi::ErrorOr<const Variant*> Find(Kernel kernel, ffi::DataType dtype, int flags) {
    for (size_t i = begin_; i < end_; ++i) {
      const Variant& variant = kVariants[i];
      if (variant.kernel != kernel || variant.dtype != dtype || variant.flags != flags) continue;
      if (!loaded_[i - begin_].load(std::memory_order_acquire)) {
        if (ffi::Error error = Load(i); error.failure()) return ffi::Unexpected(error);
      }
      return &variant;
    }
    return ffi::Unexpected(begin_ == end_ ? NoKernels() : ffi::Error::Internal("no such kernel variant"));
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

  ffi::Error NoKernels() const {
    cudaDeviceProp properties;
    const char* name = cudaGetDeviceProperties(&properties, ordinal_) == cudaSuccess ? properties.name : "this GPU";
    const char* family = FamilyOf(major_, minor_);
    std::string remedy =
        family ? std::string("reinstall with JAX_NVFP4_CUDA_ARCHS=") + family + " pip install ."
               : "there are kernels for compute capability 9.0, 10.0, 10.3 and 12.x only (JAX_NVFP4_CUDA_ARCHS=... "
                 "pip install . selects among them): run on such a GPU or on CPU";
    return ffi::Error(ffi::ErrorCode::kUnimplemented,
                      std::string("jax_nvfp4 holds no kernels for device ") + std::to_string(ordinal_) + ", " + name +
                          " (compute capability " + std::to_string(major_) + "." + std::to_string(minor_) +
                          "); built in: " + kArchs + "; " + remedy);
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

ffi::ErrorOr<const Variant*> FindVariant(Kernel kernel, ffi::DataType dtype, int flags) {
  static auto& devices = *[] {
    auto* all = new std::vector<Device>;
    int count = 0;
    cudaGetDeviceCount(&count);
    for (int ordinal = 0; ordinal < count; ++ordinal) all->emplace_back(ordinal);
    return all;
  }();
  int ordinal = 0;
  if (ffi::Error error = CheckCuda("finding the current device", cudaGetDevice(&ordinal)); error.failure()) {
    return ffi::Unexpected(error);
  }
  return devices.at(ordinal).Find(kernel, dtype, flags);
}

}  // namespace jax_nvfp4::cuda

// The GPU families whose kernels this library holds, comma separated.
extern "C" __attribute__((visibility("default"))) const char* jax_nvfp4_cuda_archs() { return jax_nvfp4::cuda::kArchs; }
