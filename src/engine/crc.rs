//! CRC-32C (Castagnoli), the checksum of files that outlive a process: RFC 3720, appendix B.4.
//!
//! It detects torn and flipped bytes. It is no defence against forgery, which would need root to write
//! where records are kept. It uses a table: grants are written at every grant, 64 bytes of them for a slice
//! of one GPU.

/// The reflected polynomial 0x1EDC6F41.
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// The remainder for each byte value that is shifted out.
const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let (mut crc, mut bit) = (byte as u32, 0);
        while bit < 8 {
            crc = (crc >> 1) ^ (POLYNOMIAL & (crc & 1).wrapping_neg());
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// The checksum of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, &byte: &u8| (crc >> 8) ^ TABLE[usize::from(crc as u8 ^ byte)];
    !bytes.iter().fold(!0, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 3720, appendix B.4, and the usual check value.
    #[test]
    fn known_values() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xFF; 32]), 0x62A8_AB43);
        assert_eq!(crc32c(&[]), 0);
    }
}
