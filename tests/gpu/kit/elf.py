"""What a shared library exports and calls itself: a reader of ELF's dynamic section."""
import struct


def dynamic(path):
    """(SONAME, names of the functions and objects it defines) of a 64-bit little-endian library."""
    data = open(path, "rb").read()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path} is not a 64-bit little-endian ELF file")
    offset, size, count = (struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 58))
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, offset + size * at) for at in range(count)]
    soname, names = None, set()
    for _, kind, _, _, start, length, link, _, _, each in sections:
        if kind == 11:  # SHT_DYNSYM
            strings = sections[link][4]
            for at in range(start, start + length, each):
                name, _, _, home, _, _ = struct.unpack_from("<IBBHQQ", data, at)
                if home != 0:
                    names.add(text(data, strings + name))
        elif kind == 6:  # SHT_DYNAMIC
            strings = sections[link][4]
            for at in range(start, start + length, 16):
                tag, value = struct.unpack_from("<qQ", data, at)
                if tag == 14:  # DT_SONAME
                    soname = text(data, strings + value)
    return soname, names


def text(data, at):
    return data[at : data.index(b"\0", at)].decode()
