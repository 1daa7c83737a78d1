//! CRC-32C of bytes whose beginning changed, without reading the rest again.
//!
//! A CRC is the remainder of the bytes, taken as a polynomial over two elements, by the polynomial P. Appending n bytes
//! multiplies by x^(8n), so the checksum of A then B is `crc(A) * x^(8|B|) + crc(B)` modulo P, and another A changes it by
//! `(crc(A) + crc(A')) * x^(8|B|)`. The power takes a few dozen multiplications of 32 steps, half a microsecond. (The
//! crate `crc32c` has a combine function that squares matrices instead; it takes ten, in which the CRC of 250 KiB could
//! be computed anew.)

/// P, reflected and without its highest term: the top bit of a word is the coefficient of x^0, as in the checksum.
const POLYNOMIAL: u32 = 0x82f6_3b78;
const ONE: u32 = 1 << 31;

/// The checksum of `prefix'` then the rest, of `crc`, that of `prefix` then the rest, whose rest has `rest_bytes`.
pub(crate) fn with_prefix(crc: u32, prefix_crc: u32, new_prefix_crc: u32, rest_bytes: usize) -> u32 {
    crc ^ multiply(prefix_crc ^ new_prefix_crc, power_of_x8(rest_bytes))
}

/// a * b modulo P.
fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut coefficient = ONE;
    while coefficient != 0 {
        // Without branches: the bits of a checksum are noise that no predictor learns.
        product ^= b & 0u32.wrapping_sub(u32::from(a & coefficient != 0));
        b = (b >> 1) ^ (POLYNOMIAL & 0u32.wrapping_sub(b & 1));
        coefficient >>= 1;
    }
    product
}

/// x^(8n) modulo P, by squaring.
fn power_of_x8(n: usize) -> u32 {
    const X8: u32 = ONE >> 8;
    let (mut product, mut power, mut rest) = (ONE, X8, n);
    while rest != 0 {
        if rest & 1 == 1 {
            product = multiply(product, power);
        }
        power = multiply(power, power);
        rest >>= 1;
    }
    product
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_product_with_one_is_the_factor() {
        for value in [0, 1, ONE, POLYNOMIAL, u32::MAX] {
            assert_eq!(multiply(value, ONE), value);
            assert_eq!(multiply(ONE, value), value);
        }
        assert_eq!(power_of_x8(0), ONE);
    }

    #[test]
    fn appending_zeros_agrees_with_the_crate_for_any_length() {
        for bytes in [0, 1, 2, 7, 8, 61, 100, 4096, 102_400, 1 << 20, (1 << 31) - 1, 1 << 31] {
            for crc in [1, 0xdead_beef, u32::MAX] {
                assert_eq!(multiply(crc, power_of_x8(bytes)), crc32c::crc32c_combine(crc, 0, bytes), "{bytes}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_changed_prefix_gives_the_checksum_of_the_whole(
            old in prop::collection::vec(any::<u8>(), 0..60),
            new in prop::collection::vec(any::<u8>(), 0..60),
            rest in prop::collection::vec(any::<u8>(), 0..500),
        ) {
            let crc = |parts: [&[u8]; 2]| crc32c::crc32c(&parts.concat());
            let changed = with_prefix(crc([&old, &rest]), crc32c::crc32c(&old), crc32c::crc32c(&new), rest.len());
            prop_assert_eq!(changed, crc([&new, &rest]));
        }
    }
}
