"""Files and checkpoints: what was written comes back, and nothing else comes back as something it is not."""

import json
import zipfile

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest

import jax_nvfp4
from jax_nvfp4 import NVFP4, NVFP4_2D, QuantSpec
from jax_nvfp4.testing import arrays, assert_same_bytes, make

ROW_SCOPE, SWIZZLED = QuantSpec(scope="row"), QuantSpec(scale_layout="swizzled")
MODES = [(NVFP4, -1), (NVFP4, -2), (NVFP4_2D, -2), (ROW_SCOPE, -1), (SWIZZLED, -2)]


def quantized(spec=NVFP4, axis=-1, shape=(2, 32, 64)):
    return jax_nvfp4.quantize(make("nan_block", shape, "bfloat16"), spec, axis=axis)


def assert_equal(a, b):
    for field, x, y in zip(("codes", "scales", "amax"), arrays(a), arrays(b), strict=True):
        assert_same_bytes(x, y, field)
    assert (a.spec, a.axis) == (b.spec, b.axis)


@pytest.mark.parametrize("spec, axis", MODES, ids=str)
@pytest.mark.parametrize("shape", [(2, 32, 64), (16, 16), (0, 16)], ids=str)
def test_file(spec, axis, shape, tmp_path):
    t = quantized(spec, axis, shape)
    for path in (tmp_path / "t.npz", str(tmp_path / "no extension")):
        jax_nvfp4.save(path, t)
        assert_equal(jax_nvfp4.load(path), t)


def test_header(tmp_path):
    """The file says what it holds, to a reader that has only NumPy."""
    t = quantized(SWIZZLED, -2)
    jax_nvfp4.save(tmp_path / "t.npz", t)
    with np.load(tmp_path / "t.npz") as file:
        assert file.files == ["header", "codes", "scales", "amax"]
        assert json.loads(file["header"].tobytes()) == {
            "kind": "jax_nvfp4.BlockScaled",
            "version": 1,
            "spec": {
                "format": "nvfp4",
                "block": [1, 16],
                "scope": "tensor",
                "scale_layout": "swizzled",
                "rht": None,
                "four_over_six": None,
                "math": "exact",
                "scale_rounding": "rceil",
            },
            "axis": -2,
            "fields": {
                "codes": {"dtype": "uint8", "shape": [2, 64, 16]},
                "scales": {"dtype": "float8_e4m3fn", "shape": [2, 128, 4]},
                "amax": {"dtype": "float32", "shape": [2]},
            },
        }
        assert_same_bytes(file["scales"].view(ml_dtypes.float8_e4m3fn), t.scales, "scales")


def rewritten(path, change=lambda header: None, **entries):
    """The file of a container of (32, 64), with its header and entries changed."""
    jax_nvfp4.save(path, quantized(shape=(32, 64)))
    with np.load(path) as file:
        content = dict(file)
    header = json.loads(content["header"].tobytes())
    change(header)
    content["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    content = {name: value for name, value in (content | entries).items() if value is not None}
    np.savez(path, **content)


def bytes_of(content):
    return lambda path: path.write_bytes(content)


def changed(change=lambda header: None, **entries):
    return lambda path: rewritten(path, change, **entries)


def truncated(path):
    jax_nvfp4.save(path, quantized())
    path.write_bytes(path.read_bytes()[:-100])


UNREADABLE = {
    "empty": (bytes_of(b""), ("not written by jax_nvfp4.save", "no .npz")),
    "garbage": (bytes_of(b"\x80garbage" * 100), ("not written by jax_nvfp4.save", "no .npz")),
    "a plain .npy": (
        lambda path: np.save(open(path, "wb"), np.zeros(3)),
        ("not written by jax_nvfp4.save", "numpy.load reads .npy"),
    ),
    "a foreign .npz": (
        lambda path: np.savez(open(path, "wb"), a=np.zeros(3), b=np.zeros(3)),
        ("not written by jax_nvfp4.save", "entries are a, b"),
    ),
    "a pickle in an .npz": (
        lambda path: np.savez(open(path, "wb"), header=np.array([{}], object)),
        ("damaged", "Object arrays cannot be loaded"),
    ),
    "a foreign header": (
        lambda path: np.savez(open(path, "wb"), header=np.frombuffer(b'{"version": 1}', np.uint8)),
        ("not written by jax_nvfp4.save", "jax_nvfp4.BlockScaled"),
    ),
    "a header that is no JSON": (
        changed(header=np.frombuffer(b"{", np.uint8)),
        ("not written by jax_nvfp4.save", "header"),
    ),
    "a future version": (
        changed(lambda header: header.update(version=2)),
        ("of version 2", "reads version 1", "install"),
    ),
    "no version": (changed(lambda header: header.pop("version")), ("of version None", "reads version 1")),
    "truncated": (truncated, ("damaged",)),
    "codes of 5 rows": (
        changed(
            lambda header: header["fields"].update(codes={"dtype": "uint8", "shape": [5, 32]}),
            codes=np.zeros((5, 32), np.uint8),
        ),
        ("damaged", "scales must have shape (5, 4)", "got (32, 4)"),
    ),
    "a shape that the header does not say": (
        changed(codes=np.zeros((5, 32), np.uint8)),
        ("damaged", "codes is uint8 of shape (5, 32)", "header says uint8 of shape (32, 32)"),
    ),
    "a dtype that the header does not say": (
        changed(amax=np.zeros((), np.float64)),
        ("damaged", "amax is float64", "header says float32"),
    ),
    "axis 5": (changed(lambda header: header.update(axis=5)), ("damaged", "-1 or -2", "got 5")),
    "no axis": (changed(lambda header: header.pop("axis")), ("damaged", "axis")),
    "a field is missing": (changed(scales=None), ("damaged", "scales")),
    "no fields": (changed(lambda header: header.update(fields={})), ("damaged", "codes", "must be an array")),
    "an unknown field": (
        changed(lambda header: header["fields"].update(sums={"dtype": "uint8", "shape": []}), sums=np.uint8(0)),
        ("damaged", "'sums'"),
    ),
    "an unknown format": (
        changed(lambda header: header["spec"].update(format="nvfp2")),
        ("damaged", "'nvfp2'", "'nvfp4'"),
    ),
    "an unknown member of the spec": (
        changed(lambda header: header["spec"].update(colour="red")),
        ("damaged", "colour"),
    ),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_says_what_is_wrong_with_a_file(case, tmp_path):
    write, parts = UNREADABLE[case]
    path = tmp_path / "t.npz"
    write(path)
    with pytest.raises(ValueError) as raised:
        jax_nvfp4.load(path)
    for part in (str(path), *parts):
        assert part in str(raised.value)
    assert "trust" not in str(raised.value)


def test_no_damaged_byte_changes_a_number(tmp_path):
    """Every byte of a file in turn: an error that names the file, or what was written."""
    path, t = tmp_path / "t.npz", quantized(shape=(16, 16))
    jax_nvfp4.save(path, t)
    content = path.read_bytes()
    outcomes = {"refused": 0, "read": 0}
    for i in range(len(content)):
        path.write_bytes(content[:i] + bytes([content[i] ^ 0x41]) + content[i + 1 :])
        try:
            assert_equal(jax_nvfp4.load(path), t)
            outcomes["read"] += 1
        except ValueError as error:
            assert str(path) in str(error)
            outcomes["refused"] += 1
    assert outcomes["refused"] > len(content) / 2, outcomes


def test_save_refuses_what_is_not_a_container_and_keeps_the_file(tmp_path):
    path, t = tmp_path / "t.npz", quantized()
    jax_nvfp4.save(path, t)
    for bad, said in (
        (jnp.zeros((32, 64)), "got ArrayImpl: quantize it first, or use numpy.save"),
        (None, "got NoneType"),
        ({"w": t}, "got dict"),
        (jax.eval_shape(lambda: t), "codes is a ShapeDtypeStruct, which has no values"),
        (jax.tree.map(lambda a: None, t), "codes .* must be an array, got None"),
    ):
        with pytest.raises(TypeError, match=said):
            jax_nvfp4.save(path, bad)
    assert_equal(jax_nvfp4.load(path), t)


@pytest.mark.parametrize("path", [None, 0, 1.0, ["t.npz"]], ids=str)
def test_a_path_is_a_path(path):
    """`open(0)` would read the standard input."""
    for call in (lambda: jax_nvfp4.load(path), lambda: jax_nvfp4.save(path, quantized())):
        with pytest.raises(TypeError, match="expected str, bytes or os.PathLike object, not"):
            call()


def test_a_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        jax_nvfp4.load(tmp_path / "none.npz")


def test_zip_says_what_it_is(tmp_path):
    jax_nvfp4.save(tmp_path / "t.npz", quantized())
    assert zipfile.ZipFile(tmp_path / "t.npz").testzip() is None


@pytest.mark.parametrize("spec, axis", MODES, ids=str)
def test_orbax_checkpoint(spec, axis, tmp_path):
    t = quantized(spec, axis)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "t", {"w": t})
        checkpointer.wait_until_finished()
        like = jax.eval_shape(lambda: {"w": t})
        assert_equal(checkpointer.restore(tmp_path / "t", like)["w"], t)


@pytest.mark.parametrize(
    "written, target",
    [
        ((NVFP4, -1), (NVFP4, -2)),
        ((NVFP4, -2), (NVFP4, -1)),
        ((SWIZZLED, -1), (NVFP4, -1)),
        ((ROW_SCOPE, -1), (NVFP4, -1)),
    ],
    ids=str,
)
def test_orbax_refuses_a_target_of_another_meaning(written, target, tmp_path):
    """Square, and whole swizzle tiles: every leaf but the amax of row scope has the shape and dtype of the other's."""
    t, other = (quantized(*mode, shape=(128, 128)) for mode in (written, target))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "t", {"w": t})
        checkpointer.wait_until_finished()
        with pytest.raises(ValueError, match="codes|scales|amax"):
            checkpointer.restore(tmp_path / "t", jax.eval_shape(lambda: {"w": other}))
