"""Notes that are not written as c2sp.org/signed-note says."""


def other_notes(note: str) -> dict[str, str]:
    """A note in forms that c2sp.org/signed-note does not have."""
    head, _, line = note.rpartition("\n\n")
    name, signed = line.split(" ")[1:]
    return {
        "no signature": f"{head}\n\n",
        "no line feed at the end": note[:-1],
        "a blank line at the end": f"{note}\n",
        "a line twice": note + line,
        "a line that is no signature": f"{note}signed by nobody\n",
        "a signature of nobody": f"{note}\N{EM DASH}  {signed}",
        "a signature of a key with a plus": f"{note}\N{EM DASH} a+b {signed}",
        "another dash": f"{note}- {name} {signed}",
        "a number alone": f"{note}\N{EM DASH} w AAAAAA==\n",
        "base64 with other last bits": f"{note}\N{EM DASH} w AAAAAAB=\n",
        "base64 without its end": f"{note}\N{EM DASH} w AAAAAAA\n",
        "words after it": f"{note}\N{EM DASH} w AAAAAAA= today\n",
        "a carriage return": note.replace("\n", "\r\n"),
    }
