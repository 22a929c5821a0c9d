//! Module images, as the program passes them for loading.
//!
//! An image is a bare pointer without a length, so its first bytes decide how far it may be read:
//! PTX is text up to a zero byte; of a cubin, a fat binary or LLVM bitcode only the first bytes are
//! read.

use super::super::ptx::Module;
use gpuslice_nvabi::types::CUresult;
use std::ffi::{CStr, c_char, c_void};

/// First bytes of the binary forms: ELF (cubin), fat binary, the wrapper compilers put around a
/// fat binary, LLVM bitcode (NVVM) plain and wrapped, and a static library.
const BINARY: [&[u8]; 6] = [
    b"\x7fELF",
    b"\x50\xed\x55\xba",
    b"\xb1\x43\x62\x46",
    b"BC\xc0\xde",
    b"\xde\xc0\x17\x0b",
    b"!<arch>\n",
];

/// Reads an image of known length.
pub fn from_bytes(bytes: &[u8]) -> Result<Module, CUresult> {
    let mut module = read(bytes)?;
    module.image_bytes = bytes.len() as u64;
    Ok(module)
}

fn read(bytes: &[u8]) -> Result<Module, CUresult> {
    if BINARY.iter().any(|magic| bytes.starts_with(magic)) {
        return Ok(Module::opaque());
    }
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    if text.is_empty() {
        return Err(CUresult::ERROR_INVALID_IMAGE);
    }
    Module::parse(&String::from_utf8_lossy(text)).ok_or(CUresult::ERROR_INVALID_IMAGE)
}

/// Reads an image in memory.
///
/// # Safety
/// `image` is not null and points to an image of one of the forms above, or to text ended by a
/// zero byte.
pub unsafe fn from_memory(image: *const c_void) -> Result<Module, CUresult> {
    let magic = |magic: &&[u8]| {
        // Byte by byte, stopping at the first that differs, so that a short text is not overrun.
        magic.iter().enumerate().all(|(at, byte)| {
            // SAFETY: all bytes before this one were equal to a magic without zeros, so the image
            // has not ended yet.
            unsafe { *image.cast::<u8>().add(at) == *byte }
        })
    };
    if BINARY.iter().any(magic) {
        return Ok(Module::opaque());
    }
    // SAFETY: it is none of the binary forms, so it is text ended by a zero byte.
    let text = unsafe { CStr::from_ptr(image.cast::<c_char>()) };
    from_bytes(text.to_bytes())
}

/// Reads an image from a file.
pub fn from_file(path: &CStr) -> Result<Module, CUresult> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::OsStr::from_bytes(path.to_bytes());
    let bytes = std::fs::read(path).map_err(|_| CUresult::ERROR_FILE_NOT_FOUND)?;
    from_bytes(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_told_apart() {
        let opaque = |bytes: &[u8]| from_bytes(bytes).map(|module| module.opaque);
        assert_eq!(opaque(b"\x7fELF\x02\x01"), Ok(true));
        assert_eq!(opaque(b"\x50\xed\x55\xba\x01\x00"), Ok(true));
        assert_eq!(opaque(b".version 7.0\n.entry a {}\0trailing"), Ok(false));
        for bad in [&b""[..], b"\0", b"garbage\0", b"\x7fEL"] {
            assert_eq!(opaque(bad), Err(CUresult::ERROR_INVALID_IMAGE));
        }
        // SAFETY: both are texts ended by a zero byte.
        unsafe {
            assert!(from_memory(c".version 8.0".as_ptr().cast()).is_ok());
            assert!(from_memory(c"\x7fEL".as_ptr().cast()).is_err());
        }
    }
}
