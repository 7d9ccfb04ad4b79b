"""`DecodeMat` with `formats`: what Pillow decodes when it is asked to, and the names of all formats in errors."""

import io
import struct
import sys
import zlib

import cv2
import numpy as np
import pytest
from cv_helpers import error_of, refused

import headrace
from headrace.errors import ConfigError, InputError, MissingDependencyError
from headrace_cv import check_image_file, decode_image
from headrace_cv.decode import DecodeMat

Image = pytest.importorskip("PIL.Image")
ImageOps = pytest.importorskip("PIL.ImageOps")
PngInfo = pytest.importorskip("PIL.PngImagePlugin").PngInfo

PILLOW = {"bmp": "BMP", "tiff": "TIFF", "gif": "GIF", "avif": "AVIF", "ppm": "PPM", "jpeg2000": "JPEG2000"}  # fmt: skip
NAMES = {**PILLOW, "jpeg2000": "JPEG 2000"}
LOSSLESS = ["bmp", "tiff", "ppm", "jpeg2000"]


def saved(bgr, name, **how):
    """A file that Pillow writes of an image of blue, green and red."""
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(bgr[:, :, ::-1])).save(file, PILLOW[name], **how)
    return file.getvalue()


@pytest.mark.parametrize("name", PILLOW)
def test_a_format_that_is_named_is_decoded_as_opencv_does(kit, name):
    image = kit.smooth_image(40, 60)
    data = saved(image, name)
    request = kit.run(kit.ready(DecodeMat, formats=[name]), data=data)
    assert request["color"] == "bgr"
    assert request["result"].dtype == np.uint8
    assert request["result"].shape == (40, 60, 3)
    assert request["result"].flags.owndata or request["result"].base is None
    if name in LOSSLESS:
        assert (request["result"] == image).all()
    else:
        independent = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        if independent is None:
            pytest.skip(
                f"OpenCV {cv2.__version__} has nothing to compare with: it decodes no {name}"
            )
        assert np.abs(request["result"].astype(int) - independent).max() <= 2
    assert (decode_image(data, formats=[name]) == request["result"]).all()


@pytest.mark.parametrize("name", PILLOW)
def test_no_format_is_decoded_unless_it_is_named(kit, name):
    data = saved(kit.smooth_image(20, 30), name)
    others = [one for one in PILLOW if one != name]
    article = "an" if name == "avif" else "a"
    for options in ({}, {"formats": others}):
        error = error_of(kit, data, **options)
        assert error.what == f"this is {article} {NAMES[name]} file"
        assert f'formats = ["{name}"]' in error.hint
        assert "Pillow" in error.hint
    assert "BMP" not in error_of(kit, data).expected
    with pytest.raises(InputError, match=f"this is {article} {NAMES[name]} file"):
        check_image_file(data)


@pytest.mark.parametrize(
    ("start", "name"),
    [
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "a HEIC"),
        (b"\0\0\0\x18ftypmif1\0\0\0\0mif1avif", "an AVIF"),
        (b"\xff\x0a" + bytes(20), "a JPEG XL"),
        (b"%PDF-1.7\n", "a PDF"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "an SVG"),
        (b"<!DOCTYPE html><p>404", "an HTML"),
        (b"P5 1 1 255 \0", "a PPM"),
        (b"II+\0\x08\0\0\0", "a TIFF"),
    ],
)
def test_a_format_is_named_by_its_first_bytes(kit, start, name):
    error = error_of(kit, start)
    assert error.what == f"this is {name} file"
    assert repr(start[:12]) in error.got
    assert ("formats" in error.hint) == (name.split()[1] in PILLOW.values())


def test_jpeg_png_and_webp_are_decoded_beside_what_is_named(kit):
    backend = kit.ready(DecodeMat, formats=["gif"])
    image = kit.smooth_image(8, 9)
    for kind in ("png", "lossless webp"):
        assert (kit.run(backend, data=kit.encode(image, kind))["result"] == image).all()
    assert kit.run(backend, data=kit.encode(image, "baseline jpeg"))["result"].shape == (8, 9, 3)
    assert kit.run(backend, data=kit.encode(image, "progressive jpeg"))["result"].shape == (8, 9, 3)
    assert "PNG, WebP or GIF" in error_of(kit, b"nothing known", formats=["gif"]).expected


def test_an_option_that_adds_nothing_or_is_no_format_is_refused():
    for formats, words in ((["jpeg"], "always decoded"), (["heic"], "jpeg2000"), ("gif", "list")):
        with pytest.raises(ConfigError, match=words):
            headrace.PipelineConfig.load({"backend": "DecodeMat", "formats": formats})
    with pytest.raises(ValueError, match="each of formats is one of"):
        decode_image(b"", formats=["heic"])


@pytest.mark.parametrize("name", PILLOW)
def test_a_file_that_is_cut_off_is_refused(kit, name):
    data = saved(np.random.default_rng(0).integers(0, 256, (64, 96, 3), np.uint8), name)
    backend = kit.ready(DecodeMat, formats=[name])
    for percent in (1, 10, 25, 50, 75, 90):
        error = refused(kit, backend, data=data[: len(data) * percent // 100])
        assert error.key == "data"


def bomb(name, side):
    """A short file whose header claims a picture of ``side`` by ``side`` pixels."""
    data = bytearray(saved(np.zeros((1, 1, 3), np.uint8), name))
    if name == "bmp":
        struct.pack_into("<ii", data, 18, side, side)
    elif name == "gif":
        struct.pack_into("<HH", data, 6, side, side)
    elif name == "ppm":
        return b"P6 %d %d 255 " % (side, side)
    elif name == "tiff":
        (start,) = struct.unpack_from("<I", data, 4)
        for entry in range(start + 2, start + 2 + 12 * 20, 12):
            (tag,) = struct.unpack_from("<H", data, entry)
            if tag in (256, 257):
                struct.pack_into("<HHII", data, entry, tag, 4, 1, side)
            if tag == 257:
                break
    elif name == "jpeg2000":
        for box in (b"ihdr", b"\xff\x51"):
            at = data.index(box) + (4 if box == b"ihdr" else 6)
            struct.pack_into(">II", data, at, side, side)
    else:
        at = data.index(b"ispe") + 8
        struct.pack_into(">II", data, at, side, side)
    return bytes(data)


@pytest.mark.parametrize("name", PILLOW)
def test_a_bomb_is_refused_before_memory_is_taken(kit, name):
    error = error_of(kit, bomb(name, 30_000), formats=[name])
    if name != "avif":  # the decoder compares the two sizes in the file itself
        assert "30000 x 30000 = 900000000 pixels" in error.got
        assert "max_pixels" in error.hint


def disposing_gif(image, screen=None):
    """A GIF whose first frame is to be disposed of, at its place on a screen of that width and height."""
    data = bytearray(
        saved(image, "gif", disposal=2, save_all=True, append_images=[Image.new("RGB", (2, 2))])
    )
    struct.pack_into("<HH", data, 6, *(screen or image.shape[1::-1]))
    return bytes(data)


@pytest.mark.parametrize("name", [*PILLOW, "disposed", "beyond", "group4", "turned"])
def test_the_limit_of_pillow_is_that_of_the_program_and_not_of_this(
    kit, monkeypatch, recwarn, name
):
    image = kit.smooth_image(40, 60)
    how = {"compression": "tiff_lzw"} if name == "group4" else {}
    if name == "turned":
        how = {"exif": Image.Exif()}
        how["exif"][0x0112] = 6
    known = name if name in PILLOW else "gif" if name in ("disposed", "beyond") else "tiff"
    data = saved(image, known, **how)
    if known == "gif" and name != "gif":
        data = disposing_gif(image, (3, 5) if name == "beyond" else None)
    expected = decode_image(data, formats=[known])
    most = expected.shape[0] * expected.shape[1]
    for limit in (most - 1, 10):  # Pillow warns above its limit, and refuses twice as much
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        decoded = kit.run(kit.ready(DecodeMat, formats=[known], max_pixels=most), data=data)
        np.testing.assert_array_equal(decoded["result"], expected)
        assert not recwarn.list
        error = error_of(kit, data, formats=[known], max_pixels=most - 1)
        assert "max_pixels" in error.hint
    assert Image.MAX_IMAGE_PIXELS == 10
    with pytest.raises(Image.DecompressionBombError):
        Image.open(io.BytesIO(data)).load()


def test_what_a_gif_disposes_of_counts_as_pixels(kit):
    data = bytearray(disposing_gif(kit.smooth_image(4, 6)))
    place = data.index(b",")
    struct.pack_into("<HH", data, place + 5, 30_000, 30_000)
    struct.pack_into("<HH", data, 6, 30_000, 30_000)
    error = error_of(kit, bytes(data), formats=["gif"])
    assert "30000 x 30000 = 900000000 pixels" in error.got


@pytest.mark.parametrize("name", PILLOW)
def test_the_limits_are_inclusive(kit, name):
    data = saved(kit.smooth_image(10, 20), name)
    kit.run(kit.ready(DecodeMat, formats=[name], max_pixels=200, max_bytes=len(data)), data=data)
    error_of(kit, data, formats=[name], max_pixels=199)
    assert "bytes" in error_of(kit, data, formats=[name], max_bytes=len(data) - 1).got


def test_a_frame_larger_than_its_screen_counts_as_large_as_it_is(kit):
    data = bytearray(saved(np.zeros((1, 1, 3), np.uint8), "gif"))
    at = data.index(b"\x2c")
    struct.pack_into("<HH", data, at + 5, 12_000, 12_000)
    error_of(kit, bytes(data), formats=["gif"])


def test_sixteen_bits_become_eight_and_grey_becomes_three_channels(kit):
    gray = kit.smooth_image(6, 8)[:, :, 0]
    deep = Image.fromarray(gray.astype(np.uint16) * 257)
    for name in ("tiff", "ppm", "jpeg2000"):
        file = io.BytesIO()
        deep.save(file, PILLOW[name])
        result = decode_image(file.getvalue(), formats=[name])
        assert (result == gray[:, :, None]).all()
    file = io.BytesIO()
    Image.fromarray(gray.astype(np.float32)).save(file, "TIFF")
    assert "32 bits" in error_of(kit, file.getvalue(), formats=["tiff"]).got


def test_alpha_is_dropped_and_not_blended(kit):
    image = kit.smooth_image(6, 8)
    rgba = Image.fromarray(np.dstack([image[:, :, ::-1], np.full((6, 8), 10, np.uint8)]))
    file = io.BytesIO()
    rgba.save(file, "TIFF")
    assert (decode_image(file.getvalue(), formats=["tiff"]) == image).all()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["tiff", "avif"])
def test_pictures_are_turned_as_their_exif_data_ask_or_not(kit, name, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = saved(kit.smooth_image(10, 12), name, exif=exif)
    stored = decode_image(data, formats=[name], exif_orientation=False)
    assert stored.shape == (10, 12, 3)
    if name == "tiff":
        assert (stored == kit.smooth_image(10, 12)).all()
    turned = decode_image(data, formats=[name])
    plain = Image.fromarray(np.ascontiguousarray(stored[:, :, ::-1]))
    plain.getexif()[0x0112] = orientation
    expected = np.asarray(ImageOps.exif_transpose(plain))[:, :, ::-1]
    assert np.array_equal(turned, expected)


XMP = "<x:xmpmeta xmlns:x='adobe:ns:meta/'><rdf:RDF><rdf:Description {}</rdf:RDF></x:xmpmeta>"
WAYS = {"attribute": 'tiff:Orientation="{}"/>', "element": "><tiff:Orientation>{}</tiff:Orientation>"}  # fmt: skip


def png_with(image, *, xmp=None, packed=False, exif=None):
    info = PngInfo()
    if xmp is not None:
        info.add_itxt("XML:com.adobe.xmp", xmp, zip=packed)
    more = {}
    if exif is not None:
        more["exif"] = Image.Exif()
        more["exif"][0x0112] = exif
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image[:, :, ::-1])).save(file, "PNG", pnginfo=info, **more)
    return file.getvalue()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_png_files_are_turned_as_their_xmp_data_ask(kit, way, packed, orientation):
    image = kit.smooth_image(10, 12)
    data = png_with(image, xmp=XMP.format(WAYS[way].format(orientation)), packed=packed)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))[:, :, ::-1]
    assert (expected.shape[0] == 12) == (orientation > 4)
    assert np.array_equal(decode_image(data), expected)
    assert np.array_equal(decode_image(data, exif_orientation=False), image)


def test_the_exif_data_of_a_png_file_come_before_its_xmp_data(kit):
    image = kit.smooth_image(10, 12)
    for exif in (1, 3, 6):
        data = png_with(image, xmp=XMP.format(WAYS["attribute"].format(8)), exif=exif)
        expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))[:, :, ::-1]
        assert np.array_equal(decode_image(data), expected)


def test_xmp_data_that_are_wrong_or_too_long_turn_nothing(kit):
    image = kit.smooth_image(10, 12)
    wrong = [
        XMP.format('tiff:Orientation="9"/>'),
        XMP.format("other:Orientation='6'/>"),
        " " * (1 << 20) + XMP.format(WAYS["attribute"].format(6)),
    ]
    for xmp in wrong:
        assert np.array_equal(decode_image(png_with(image, xmp=xmp, packed=True)), image)
    text = b"XML:com.adobe.xmp\0\1\0\0\0no zlib data"
    chunk = struct.pack(">I4s", len(text), b"iTXt") + text
    chunk += struct.pack(">I", zlib.crc32(b"iTXt" + text))
    plain = png_with(image)
    assert np.array_equal(decode_image(plain[:33] + chunk + plain[33:]), image)


def test_a_missing_pillow_is_told_when_the_pipeline_is_built(kit, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.features", None)
    with pytest.raises(MissingDependencyError, match="Pillow") as caught:
        kit.ready(DecodeMat, formats=["gif"])
    assert "headrace-cv[formats]" in caught.value.hint
    image = kit.smooth_image(5, 6)
    assert (kit.run(kit.ready(DecodeMat), data=kit.encode(image))["result"] == image).all()


@pytest.mark.parametrize("name", ["avif", "jpeg2000"])
def test_a_pillow_without_the_decoder_is_told_when_the_pipeline_is_built(kit, monkeypatch, name):
    monkeypatch.setattr("PIL.features.check", lambda feature: False)
    with pytest.raises(MissingDependencyError, match=f"decodes no {NAMES[name]} files") as caught:
        kit.ready(DecodeMat, formats=["bmp", name])
    assert "pip install --upgrade pillow" in caught.value.hint


@pytest.mark.parametrize(
    "config",
    [
        {"backend": "LetterBoxMat", "resize_h": 4, "resize_w": 4, "pad_value": 1},
        {"backend": "TopLeftResizeMat(4,4,pad_value=1)"},
        {"backend": "S[DecodeMat,LetterBoxMat(4,4),CropMat,Mat2Tensor]", "pad_value": 1},
    ],
)
def test_the_old_name_of_the_padding_is_refused_with_the_new_one(config):
    with pytest.raises(ConfigError, match="Did you mean 'fill_value'"):
        headrace.PipelineConfig.load(config)
