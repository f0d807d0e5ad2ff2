// SPDX-License-Identifier: Apache-2.0
//! The hash of metadata and the checksum of data.

use crc_fast::CrcAlgorithm;

/// The hash of metadata: XXH3-128, least significant byte first.
pub fn hash128(bytes: &[u8]) -> [u8; 16] {
    xxhash_rust::xxh3::xxh3_128(bytes).to_le_bytes()
}

/// The checksum of data: CRC-64/NVME of a chunk's real bytes, without the padding of a last chunk.
pub fn crc64(bytes: &[u8]) -> u64 {
    crc_fast::checksum(CrcAlgorithm::Crc64Nvme, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc64_is_the_published_one() {
        // The check value in the NVMe specification's Rocksoft model.
        assert_eq!(crc64(b"123456789"), 0xAE8B_1486_0A79_9888);
        assert_eq!(crc64(&[0; 4096]), 0x6482_D367_EB22_B64E);
        assert_eq!(crc64(&[0xFF; 4096]), 0xC0DD_BA73_02EC_A3AC);
    }

    #[test]
    fn hash128_is_the_published_one() {
        // XXH3-128 of nothing, seed 0: high 99aa06d3014798d8, low 6001c324468d497f.
        assert_eq!(hash128(b""), 0x99AA_06D3_0147_98D8_6001_C324_468D_497F_u128.to_le_bytes());
    }
}
