"""Compiles the kernel table ahead of time: object files, and the C++ that launches them by name.

    python jax_nvfp4/kernels/aot.py --out DIR [--archs sm_90a,sm_100f] [-j 2]

needs CuTe DSL and no GPU, and compiles only what changed. DIR receives one object per variant and GPU
family, plus `kernels.h` and `kernels.cc`: the table of variants and one typed launch function per kernel.
`--objects` prints the object names and `--libraries` what to link them with, both without compiling.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import time
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNELS = Path(__file__).resolve().parent

if __name__ == "__main__":
    # The build runs this file by path, where the package's own __init__, hence JAX, is not needed.
    package = types.ModuleType("jax_nvfp4")
    package.__path__ = [str(ROOT / "jax_nvfp4")]
    sys.modules["jax_nvfp4"] = package

from jax_nvfp4.kernels.families import REQUIREMENTS, VARIABLE, resolve  # noqa: E402
from jax_nvfp4.kernels.variants import ARCHS, HOPPER, VARIANTS, Variant  # noqa: E402

DSL = "nvidia-cutlass-dsl"
# Without an explicit CPU the launch code is compiled for the build machine's, AVX-512 included.
HOSTS = {"x86_64": "x86-64", "aarch64": "generic"}

DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
"""Names of the dtypes of the variants in xla::ffi::DataType."""


def host_target(machine: str) -> str:
    """The compiler option for launch code on hosts named as `platform.machine()` names them.

    Raises:
        ValueError: CuTe DSL has no packages for such hosts.
    """
    if machine not in HOSTS:
        raise ValueError(
            f"CuTe DSL has packages for {' and '.join(HOSTS)} hosts, not for {machine}: {VARIABLE}= builds for CPU only"
        )
    return f'--host-target "llvm -mtriple={machine}-unknown-linux-gnu -mcpu={HOSTS[machine]}"'


def object_name(variant: Variant, arch: str) -> str:
    """File name without suffix, and symbol prefix, of a compiled variant."""
    return f"{variant.name}_{arch}"


def fingerprint(variant: Variant, arch: str, host: str) -> str:
    """Hash of everything the object depends on. Kernels import nothing of ours but primitives and formats."""
    digest = hashlib.sha256(f"{variant} {arch} {host_target(host)} {importlib.metadata.version(DSL)}".encode())
    sources = [KERNELS / f"{variant.kernel}.py", KERNELS.parent / "formats.py", *KERNELS.glob("primitives/*.py")]
    for source in sorted(sources):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def compile_variants(variants: list[Variant], arch: str, host: str, out: Path) -> None:
    """Compile variants for one family. The process must have been started with CUTE_DSL_ARCH=arch."""
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_stream

    options = f"--gpu-arch {arch} {host_target(host)}"
    # Before any kernel is imported, so that an edit during compilation leaves its object stale.
    fingerprints = {variant: fingerprint(variant, arch, host) for variant in variants}
    for variant in variants:
        name = object_name(variant, arch)
        start = time.perf_counter()
        kernel = importlib.import_module(f"jax_nvfp4.kernels.{variant.kernel}")
        arguments = kernel.arguments(dtype=variant.dtype, hopper=arch == HOPPER, **dict(variant.flags))
        compiled = cute.compile(kernel.launch, make_fake_stream(), *arguments, options=options)
        compiled.export_to_c(file_path=str(out), file_name=name, function_prefix=name)
        (out / f"{name}.hash").write_text(fingerprints[variant])
        size = (out / f"{name}.o").stat().st_size
        print(f"{name}: {time.perf_counter() - start:.2f} s, {size / 1024:.0f} KiB", flush=True)


def _compile_in_process(batch: list[Variant], arch: str, host: str, out: Path) -> subprocess.CompletedProcess:
    names = ",".join(variant.name for variant in batch)
    command = [sys.executable, __file__, "--out", str(out), "--archs", arch, "--host", host, "--worker", names]
    return subprocess.run(command, env={**os.environ, "CUTE_DSL_ARCH": arch})


def compile_all(archs: list[str], host: str, out: Path, jobs: int) -> int:
    """Compile what is stale, `jobs` processes at once. Returns how many objects were compiled.

    Raises:
        RuntimeError: a kernel did not compile.
    """
    out.mkdir(parents=True, exist_ok=True)
    batches = []
    for arch in archs:
        stale = [v for v in VARIANTS if not _is_fresh(v, arch, host, out)]
        share = max(1, -(-len(stale) * len(archs) // jobs)) if jobs > len(archs) else max(1, len(stale))
        batches += [(stale[i : i + share], arch) for i in range(0, len(stale), share)]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        runs = list(pool.map(lambda batch: _compile_in_process(*batch, host, out), batches))
    if failed := [arch for (_, arch), run in zip(batches, runs, strict=True) if run.returncode]:
        raise RuntimeError(f"kernels did not compile for {', '.join(sorted(set(failed)))}: see the messages above")
    return sum(len(stale) for stale, _ in batches)


def _is_fresh(variant: Variant, arch: str, host: str, out: Path) -> bool:
    name = object_name(variant, arch)
    files = [out / f"{name}{suffix}" for suffix in (".o", ".h", ".hash")]
    return all(file.exists() for file in files) and files[-1].read_text() == fingerprint(variant, arch, host)


@dataclasses.dataclass(frozen=True)
class Entry:
    """What the exported header of one object says: the launch symbol and its C parameters after the stream."""

    symbol: str
    parameters: tuple[tuple[str, str], ...]


def _read_entry(name: str, out: Path) -> Entry:
    header = (out / f"{name}.h").read_text()
    symbol = re.search(rf"void (_mlir_{name}__mlir_ciface_\w+)\(void \*\*args", header)
    wrapper = re.search(rf"cute_dsl_{name}_wrapper\(\w+ \*module, cudaStream_t stream, (.*?)\)", header)
    if not symbol or not wrapper:
        raise RuntimeError(f"{name}.h has no launch function: the C export of {DSL} has changed")
    parameters = []
    for parameter in wrapper[1].split(", "):
        kind, parameter_name = re.fullmatch(r"(.*?)(\w+)", parameter).groups()
        parameters.append(("Tensor" if "_Tensor_" in kind else kind.strip(), parameter_name))
    return Entry(symbol[1], tuple(parameters))


def generate(archs: list[str], out: Path) -> None:
    """Write kernels.h and kernels.cc for the objects in `out`."""
    kernels = list(dict.fromkeys(v.kernel for v in VARIANTS))
    flags = list(dict.fromkeys(flag for v in VARIANTS for flag, _ in v.flags))
    entries = {(v, arch): _read_entry(object_name(v, arch), out) for arch in archs for v in VARIANTS}
    launches = []
    for kernel in kernels:
        signatures = {e.parameters for (v, _), e in entries.items() if v.kernel == kernel}
        if len(signatures) != 1:
            raise RuntimeError(f"the variants of {kernel} take different parameters: {sorted(signatures)}")
        launches.append(_launch_function(kernel, signatures.pop()))
    header = HEADER.format(
        kernels=", ".join(kernels),
        flags="\n".join(f"inline constexpr int k{_camel(flag)} = {1 << i};" for i, flag in enumerate(flags)),
        archs=",".join(archs),
        launches="\n".join(launches),
    )
    declarations, rows = [], []
    for (variant, arch), entry in entries.items():
        name = object_name(variant, arch)
        functions = (f"_mlir_{name}_cuda_init", f"_mlir_{name}_cuda_load_to_device", entry.symbol)
        declarations += [f"void {functions[0]}(void**);", f"void {functions[1]}(void**);"]
        declarations += [f"void {functions[2]}(void**, int32_t);"]
        mask = sum(1 << flags.index(flag) for flag, on in variant.flags if on)
        key = f'"{arch}", Kernel::{variant.kernel}, xla::ffi::DataType::{DTYPES[variant.dtype]}, {mask}'
        rows.append(f"    {{{key},\n     {functions[0]},\n     {functions[1]},\n     {functions[2]}}},")
    source = SOURCE.format(declarations="\n".join(declarations), rows="\n".join(rows), count=len(rows))
    for path, text in ((out / "kernels.h", header), (out / "kernels.cc", source)):
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _launch_function(kernel: str, parameters: tuple[tuple[str, str], ...]) -> str:
    declared = ", ".join(f"{kind} {name}" for kind, name in parameters)
    passed = ", ".join(f"&{name}" for _, name in parameters)
    return LAUNCH.format(kernel=kernel, declared=declared, passed=passed, count=len(parameters) + 2)


HEADER = """\
// Generated by jax_nvfp4/kernels/aot.py.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace jax_nvfp4::cuda {{

enum class Kernel {{ {kernels} }};

{flags}

inline constexpr char kArchs[] = "{archs}";

// A flat buffer, as the compiled kernels take it: `size` counts storage words.
struct Tensor {{
  void* data;
  int64_t size;
}};

struct Variant {{
  const char* arch;
  Kernel kernel;
  xla::ffi::DataType dtype;
  int flags;
  void (*init)(void**);
  void (*load)(void**);
  void (*launch)(void**, int32_t);
}};

extern const Variant kVariants[];
extern const size_t kVariantCount;

{launches}
}}  // namespace jax_nvfp4::cuda
"""

LAUNCH = """\
inline cudaError_t launch_{kernel}(const Variant& variant, cudaStream_t stream, {declared}) {{
  int32_t result = 0;
  void* arguments[] = {{&stream, {passed}, &result}};
  variant.launch(arguments, {count});
  return static_cast<cudaError_t>(result);
}}
"""

SOURCE = """\
// Generated by jax_nvfp4/kernels/aot.py.
#include "kernels.h"

extern "C" {{
{declarations}
}}

namespace jax_nvfp4::cuda {{

const Variant kVariants[] = {{
{rows}
}};
const size_t kVariantCount = {count};

}}  // namespace jax_nvfp4::cuda
"""


def libraries() -> list[str]:
    """Include directory, then the static libraries the objects need, from the installed wheels.

    Raises:
        FileNotFoundError: a wheel is missing.
    """
    wanted = {
        "cuda_runtime_api.h": "nvidia-cuda-runtime",
        "crt/host_defines.h": "nvidia-cuda-crt",
        "libcudart_static.a": "nvidia-cuda-runtime",
        "libcuda_dialect_runtime_static.a": DSL,
    }
    found = {}
    for distribution in importlib.metadata.distributions():
        if (distribution.metadata["Name"] or "").startswith("nvidia-"):
            for file in distribution.files or ():
                for name in wanted:
                    if str(file).endswith(f"/{name}"):
                        found.setdefault(name, distribution.locate_file(file))
    for name, package in wanted.items():
        if name not in found:
            raise FileNotFoundError(f"{name} not found: pip install '{REQUIREMENTS[package]}'")
    include = Path(found["cuda_runtime_api.h"]).parent
    archives = (found["libcuda_dialect_runtime_static.a"], found["libcudart_static.a"])
    return [str(include), *map(str, archives)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for objects and generated C++")
    parser.add_argument("--archs", default="all", help=f"some of {','.join(ARCHS)}, or all, or native")
    parser.add_argument("--host", default=platform.machine(), help="processor of the hosts: x86_64 or aarch64")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count(), help="compiler processes at once")
    parser.add_argument("--objects", action="store_true", help="print the names of the objects and exit")
    parser.add_argument("--libraries", action="store_true", help="print include folder and static libraries and exit")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        archs = resolve(options.archs)
        host_target(options.host)
    except (RuntimeError, ValueError) as error:
        parser.error(str(error))
    if options.objects:
        print(";".join(f"{object_name(v, arch)}.o" for arch in archs for v in VARIANTS))
        return
    if options.libraries:
        print(";".join(libraries()))
        return
    if options.out is None:
        parser.error("--out is required")
    if options.worker:
        names = options.worker.split(",")
        compile_variants([v for v in VARIANTS if v.name in names], archs[0], options.host, options.out)
        return
    start = time.perf_counter()
    compiled = compile_all(archs, options.host, options.out, options.jobs)
    generate(archs, options.out)
    size = sum((options.out / f"{object_name(v, arch)}.o").stat().st_size for arch in archs for v in VARIANTS)
    print(
        f"{compiled} of {len(VARIANTS) * len(archs)} objects compiled in {time.perf_counter() - start:.1f} s, "
        f"{size / 2**20:.1f} MiB in all"
    )


if __name__ == "__main__":
    main()
