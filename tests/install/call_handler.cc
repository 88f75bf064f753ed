// Calls handlers of a native library as XLA does, without XLA: for processors that JAX cannot be run for here.
//
//   call_handler LIBRARY < calls > results
//
// reads calls until the end of the input and writes the bytes of their results. A call is a text of words, one newline,
// and the bytes of its operands:
//
//   TARGET OPERANDS RESULTS MEMBERS
//   DTYPE BYTES RANK DIMS...   for each operand, then for each result, with dtypes as XLA numbers them
//   NAME DTYPE BITS            for each member of the attribute "mode", sorted by name
#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "xla/ffi/api/c_api.h"

struct XLA_FFI_Error {
  std::string message;
};

namespace {

XLA_FFI_Error* CreateError(XLA_FFI_Error_Create_Args* args) { return new XLA_FFI_Error{args->message}; }

XLA_FFI_Error* CountThreads(XLA_FFI_ThreadPool_NumThreads_Args* args) {
  *args->num_threads = 2;
  return nullptr;
}

XLA_FFI_Error* RunTask(XLA_FFI_ThreadPool_Schedule_Args* args) {
  args->task(args->data);
  return nullptr;
}

// XLA runs handlers with subnormals flushed.
void FlushSubnormals() {
#if defined(__aarch64__)
  asm volatile("msr fpcr, %0" : : "r"(uint64_t{1} << 24));
#elif defined(__x86_64__)
  __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
#endif
}

[[noreturn]] void Fail(const std::string& message) {
  std::cerr << message << "\n";
  std::exit(1);
}

struct Buffer {
  std::vector<int64_t> dims;
  std::vector<char> bytes;
  XLA_FFI_Buffer view{};

  void Read() {
    int dtype;
    size_t size, rank;
    std::cin >> dtype >> size >> rank;
    bytes.assign(size, '\x5a');
    dims.resize(rank);
    for (int64_t& dim : dims) std::cin >> dim;
    view = {XLA_FFI_Buffer_STRUCT_SIZE, nullptr,    static_cast<XLA_FFI_DataType>(dtype),
            bytes.data(),               int64_t(rank), dims.data()};
  }
};

struct Member {
  std::string name;
  int64_t bits;
  XLA_FFI_ByteSpan span;
  XLA_FFI_Scalar scalar;
};

void Call(void* library, const XLA_FFI_Api& api, const std::string& target) {
  size_t operands, results, count;
  std::cin >> operands >> results >> count;
  std::vector<Buffer> buffers(operands + results);
  for (Buffer& buffer : buffers) buffer.Read();
  std::vector<Member> members(count);
  for (Member& member : members) {
    int dtype;
    std::cin >> member.name >> dtype >> member.bits;
    member.span = {member.name.data(), member.name.size()};
    member.scalar = {static_cast<XLA_FFI_DataType>(dtype), &member.bits};
  }
  std::cin.get();
  for (size_t i = 0; i < operands; ++i) std::cin.read(buffers[i].bytes.data(), buffers[i].bytes.size());
  if (!std::cin) Fail("the call of " + target + " is cut short");

  std::vector<XLA_FFI_ArgType> arg_types(operands, XLA_FFI_ArgType_BUFFER);
  std::vector<XLA_FFI_RetType> ret_types(results, XLA_FFI_RetType_BUFFER);
  std::vector<XLA_FFI_AttrType> member_types(count, XLA_FFI_AttrType_SCALAR);
  std::vector<void*> views, values;
  std::vector<XLA_FFI_ByteSpan*> names;
  for (Buffer& buffer : buffers) views.push_back(&buffer.view);
  for (Member& member : members) names.push_back(&member.span), values.push_back(&member.scalar);
  XLA_FFI_Attrs mode = {
      XLA_FFI_Attrs_STRUCT_SIZE, nullptr, int64_t(count), member_types.data(), names.data(), values.data()};

  XLA_FFI_ByteSpan mode_span = {"mode", 4};
  XLA_FFI_ByteSpan* mode_name = &mode_span;
  XLA_FFI_AttrType mode_type = XLA_FFI_AttrType_DICTIONARY;
  void* mode_value = &mode;
  XLA_FFI_CallFrame frame{};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.api = &api;
  frame.stage = XLA_FFI_ExecutionStage_EXECUTE;
  frame.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, int64_t(operands), arg_types.data(), views.data()};
  frame.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, int64_t(results), ret_types.data(), views.data() + operands};
  frame.attrs = {XLA_FFI_Attrs_STRUCT_SIZE, nullptr, 1, &mode_type, &mode_name, &mode_value};

  auto* handler = reinterpret_cast<XLA_FFI_Handler*>(dlsym(library, target.c_str()));
  if (!handler) Fail("the library has no " + target);
  FlushSubnormals();
  if (XLA_FFI_Error* error = handler(&frame)) Fail(target + ": " + error->message);
  for (size_t i = operands; i < buffers.size(); ++i) std::cout.write(buffers[i].bytes.data(), buffers[i].bytes.size());
}

}  // namespace

int main(int, char** argv) {
  void* library = dlopen(argv[1], RTLD_NOW);
  if (!library) Fail(dlerror());
  XLA_FFI_Api api{};
  api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
  api.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};
  api.XLA_FFI_Error_Create = CreateError;
  api.XLA_FFI_ThreadPool_NumThreads = CountThreads;
  api.XLA_FFI_ThreadPool_Schedule = RunTask;
  for (std::string target; std::cin >> target;) Call(library, api, target);
}
