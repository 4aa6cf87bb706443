"""Small files that the tests draw themselves: a picture, a page and a sound."""

import struct
import zlib


def _chunk(kind: bytes, data: bytes) -> bytes:
    whole = kind + data
    return struct.pack(">I", len(data)) + whole + struct.pack(">I", zlib.crc32(whole))


def png(width: int = 8, height: int = 8, level: int = -1) -> bytes:
    """A picture with a gradient (PNG, ISO/IEC 15948); `level` 0 does not compress it."""
    rows = b"".join(
        b"\0" + b"".join(bytes((255 * x // width, 255 * y // height, 128)) for x in range(width))
        for y in range(height)
    )
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, level)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def pdf(text: str = "Order A-17 was paid twice.") -> bytes:
    """A page with a line of text (PDF, ISO 32000)."""
    stream = f"BT /F1 18 Tf 20 100 Td ({text}) Tj ET".encode()
    font = b"/Resources << /Font << /F1 5 0 R >> >> >>"
    objects = (
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 200] /Contents 4 0 R " + font,
        b"<< /Length %d >>\nstream\n%b\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    )
    found, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(found))
        found += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    size = len(objects) + 1
    return found + (
        b"xref\n0 %d\n0000000000 65535 f \n%btrailer\n<< /Size %d /Root 1 0 R >>\n"
        b"startxref\n%d\n%%%%EOF\n" % (size, table, size, len(found))
    )


def wav(samples: int = 64) -> bytes:
    """A beep (RIFF WAVE)."""
    data = b"".join(struct.pack("<h", 8000 if place % 8 < 4 else -8000) for place in range(samples))
    form = struct.pack("<HHIIHH", 1, 1, 8000, 16000, 2, 16)
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form
    body += b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


PNG, PDF, WAV = png(), pdf(), wav()
