"""Compiles the kernel table ahead of time.

    python jax_nvfp4/kernels/aot.py --out DIR [--archs sm_90a,sm_100f] [--variants all] [-j 2]

needs CuTe DSL and no GPU, and compiles only what changed. DIR receives one object per variant and GPU
family, and the C++ that launches them (`dispatch.py`). `--objects` prints the object names and `--libraries`
what to link them with, both without compiling.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
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

from jax_nvfp4.kernels import dispatch  # noqa: E402
from jax_nvfp4.kernels.families import FAMILIES, REQUIREMENTS, VARIABLE, resolve  # noqa: E402
from jax_nvfp4.kernels.variants import OPTIONAL, VARIANTS, Variant, select  # noqa: E402

DSL = "nvidia-cutlass-dsl"
# Without an explicit CPU the launch code is compiled for the build machine's, AVX-512 included.
HOSTS = {"x86_64": "x86-64", "aarch64": "generic"}


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


def fingerprint(variant: Variant, arch: str, host: str) -> str:
    """Hash of everything the object depends on: of our files, the kernel's and what it imports."""
    digest = hashlib.sha256(f"{variant!r} {arch} {host_target(host)} {importlib.metadata.version(DSL)}".encode())
    for source in sorted(_imported(KERNELS / f"{variant.kernel}.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()


@functools.cache
def _imported(source: Path) -> frozenset[Path]:
    """A file of ours and every file of ours that it imports, directly or not."""
    files, pending = set(), {source}
    while pending:
        files.add(source := pending.pop())
        for package, names in re.findall(r"^\s*from (jax_nvfp4[.\w]*) import ([\w, ]+)", source.read_text(), re.M):
            folder = ROOT / package.replace(".", "/")
            candidates = {folder.with_suffix(".py"), folder / "__init__.py"}
            candidates |= {folder / f"{name.strip()}.py" for name in names.split(",")}
            pending |= {file for file in candidates if file.exists()} - files
    return frozenset(files)


def compile_variants(variants: list[Variant], arch: str, host: str, out: Path) -> None:
    """Compile variants for one family. The process must have been started with CUTE_DSL_ARCH=arch."""
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_stream

    options = f"--gpu-arch {arch} {host_target(host)}"
    # Before any kernel is imported, so that an edit during compilation leaves its object stale.
    fingerprints = {variant: fingerprint(variant, arch, host) for variant in variants}
    for variant in variants:
        name = variant.object_name(arch)
        start = time.perf_counter()
        kernel = importlib.import_module(f"jax_nvfp4.kernels.{variant.kernel}")
        arguments = (make_fake_stream(), *kernel.arguments(variant), variant)
        compiled = cute.compile(kernel.launch, *arguments, options=options)
        compiled.export_to_c(file_path=str(out), file_name=name, function_prefix=name)
        (out / f"{name}.hash").write_text(fingerprints[variant])
        size = (out / f"{name}.o").stat().st_size
        print(f"{name}: {time.perf_counter() - start:.2f} s, {size / 1024:.0f} KiB", flush=True)


def _compile_in_process(batch: list[Variant], arch: str, host: str, out: Path) -> subprocess.CompletedProcess:
    names = ",".join(variant.name for variant in batch)
    command = [sys.executable, __file__, "--out", str(out), "--archs", arch, "--host", host, "--worker", names]
    return subprocess.run(command, env={**os.environ, "CUTE_DSL_ARCH": arch})


def compile_all(variants: tuple[Variant, ...], archs: list[str], host: str, out: Path, jobs: int) -> int:
    """Compile what is stale, `jobs` processes at once. Returns how many objects were compiled.

    Raises:
        RuntimeError: a kernel did not compile.
    """
    out.mkdir(parents=True, exist_ok=True)
    batches = []
    for arch in archs:
        stale = [v for v in variants if not _is_fresh(v, arch, host, out)]
        share = max(1, -(-len(stale) * len(archs) // jobs)) if jobs > len(archs) else max(1, len(stale))
        batches += [(stale[i : i + share], arch) for i in range(0, len(stale), share)]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        runs = list(pool.map(lambda batch: _compile_in_process(*batch, host, out), batches))
    if failed := [arch for (_, arch), run in zip(batches, runs, strict=True) if run.returncode]:
        raise RuntimeError(f"kernels did not compile for {', '.join(sorted(set(failed)))}: see the messages above")
    return sum(len(stale) for stale, _ in batches)


def _is_fresh(variant: Variant, arch: str, host: str, out: Path) -> bool:
    name = variant.object_name(arch)
    files = [out / f"{name}{suffix}" for suffix in (".o", ".h", ".hash")]
    return all(file.exists() for file in files) and files[-1].read_text() == fingerprint(variant, arch, host)


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
    parser.add_argument("--archs", default="all", help=f"some of {','.join(FAMILIES)}, or all, or native")
    parser.add_argument("--variants", default="", help="optional variants to compile too: names, wildcards, or all")
    parser.add_argument("--host", default=platform.machine(), help="processor of the hosts: x86_64 or aarch64")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count(), help="compiler processes at once")
    parser.add_argument("--objects", action="store_true", help="print the names of the objects and exit")
    parser.add_argument("--libraries", action="store_true", help="print include folder and static libraries and exit")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        archs = resolve(options.archs)
        host_target(options.host)
        variants = select(options.variants)
    except (RuntimeError, ValueError) as error:
        parser.error(str(error))
    objects = [f"{v.object_name(arch)}.o" for arch in archs for v in variants]
    if options.objects:
        print(";".join(objects))
        return
    if options.libraries:
        print(";".join(libraries()))
        return
    if options.out is None:
        parser.error("--out is required")
    if options.worker:
        names = options.worker.split(",")
        compile_variants([v for v in (*VARIANTS, *OPTIONAL) if v.name in names], archs[0], options.host, options.out)
        return
    start = time.perf_counter()
    compiled = compile_all(variants, archs, options.host, options.out, options.jobs)
    dispatch.generate(variants, archs, options.out)
    size = sum((options.out / name).stat().st_size for name in objects)
    print(
        f"{compiled} of {len(objects)} objects compiled in {time.perf_counter() - start:.1f} s, "
        f"{size / 2**20:.1f} MiB in all"
    )


if __name__ == "__main__":
    main()
