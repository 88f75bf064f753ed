// What Python compares with the installed jaxlib before it registers a handler: XLA refuses a library made for a newer
// FFI, and takes all of JAX down with it.
#include "xla/ffi/api/c_api.h"

extern "C" __attribute__((visibility("default"))) const int jax_nvfp4_ffi_api_version[] = {XLA_FFI_API_MAJOR,
                                                                                           XLA_FFI_API_MINOR};
