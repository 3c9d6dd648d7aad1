//! Parses numbers and truth values without allocation.

/// Returns the text without surrounding white space.
pub(crate) fn trim(cell: &[u8]) -> &[u8] {
    cell.trim_ascii()
}

/// Parses a whole number of up to eight plain digits in `text[start..end]`: the common case, without a loop.
///
/// Reads eight bytes after `start`, so it returns `None` near the end of `text`.
#[inline]
pub(crate) fn short_digits(text: &[u8], start: usize, length: usize) -> Option<u64> {
    if length == 0 || length > 8 {
        return None;
    }
    let word = u64::from_le_bytes(*text.get(start..)?.first_chunk::<8>()?);
    // Moves the digits to the end and fills the front with zeros. A byte below '0' does not become a digit below.
    let word = shift_in_zeros(word, length);
    is_digits(word).then(|| digits_value(word))
}

/// Returns the first `length` bytes of a word, 1 to 8, moved to its end, after zeros.
#[inline]
fn shift_in_zeros(word: u64, length: usize) -> u64 {
    const ZEROS: u64 = 0x3030_3030_3030_3030;
    let fill = 64 - 8 * length;
    // In two steps, because a shift by 64 bits is undefined.
    (word << fill) | (ZEROS >> 1 >> (63 - fill))
}

#[inline]
fn is_digits(word: u64) -> bool {
    let above = word.wrapping_add(0x4646_4646_4646_4646);
    let below = word.wrapping_sub(0x3030_3030_3030_3030);
    (above | below) & 0x8080_8080_8080_8080 == 0
}

/// Returns the number that eight digits in a little-endian word represent.
#[inline]
fn digits_value(word: u64) -> u64 {
    let pairs = (word & 0x0F0F_0F0F_0F0F_0F0F).wrapping_mul(2561) >> 8;
    let fours = (pairs & 0x00FF_00FF_00FF_00FF).wrapping_mul(6_553_601) >> 16;
    (fours & 0x0000_FFFF_0000_FFFF).wrapping_mul(42_949_672_960_001) >> 32
}

/// Parses a whole number with an optional sign, within `i64`.
pub(crate) fn parse_integer(cell: &[u8]) -> Option<i64> {
    let (negative, digits) = split_sign(cell);
    if digits.is_empty() {
        return None;
    }
    let mut value = 0i64;
    for &byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        // Negative, because the negative range of i64 is larger by one.
        value = value.checked_mul(10)?.checked_sub(i64::from(digit))?;
    }
    if negative { Some(value) } else { value.checked_neg() }
}

/// Parses a whole number without a minus, within `u64`.
pub(crate) fn parse_unsigned(cell: &[u8]) -> Option<u64> {
    let (negative, digits) = split_sign(cell);
    if negative || !is_whole(cell) {
        return None;
    }
    digits
        .iter()
        .try_fold(0u64, |value, byte| value.checked_mul(10)?.checked_add(u64::from(byte - b'0')))
}

/// Returns whether a text is a whole number of any size.
pub(crate) fn is_whole(cell: &[u8]) -> bool {
    let (_, digits) = split_sign(cell);
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

fn split_sign(cell: &[u8]) -> (bool, &[u8]) {
    match cell {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, cell),
    }
}

/// Parses a decimal or scientific number, `nan` or `inf`; correctly rounded.
pub(crate) fn parse_float(cell: &[u8]) -> Option<f64> {
    let (negative, rest) = split_sign(cell);
    if !rest.first().is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'.') {
        return None;
    }
    let value = short_decimal(rest).or_else(|| fast_float2::parse(rest).ok())?;
    Some(if negative { -value } else { value })
}

/// Powers of ten that a double represents exactly.
const POWERS_OF_TEN: [f64; 18] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17,
];

/// Parses digits with at most one point. Exact, because both operands of its division are.
pub(crate) fn short_decimal(digits: &[u8]) -> Option<f64> {
    const EXACT_MAX: u64 = 1 << 53;
    if digits.is_empty() || digits.len() > POWERS_OF_TEN.len() {
        return None;
    }
    let mut mantissa = 0u64;
    let mut point = digits.len();
    for (index, &byte) in digits.iter().enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit <= 9 {
            mantissa = mantissa * 10 + u64::from(digit);
        } else if byte == b'.' && point == digits.len() && digits.len() > 1 {
            point = index;
        } else {
            return None;
        }
    }
    let fraction = (digits.len() - point).saturating_sub(1);
    (mantissa <= EXACT_MAX).then(|| mantissa as f64 / POWERS_OF_TEN[fraction])
}

/// Parses a decimal of up to eight characters, digits with at most one point, in `text[start..end]`, with an optional
/// minus: the common case. Has no loop, because lengths vary from cell to cell and each branch misprediction costs as
/// much as the whole conversion.
///
/// Reads eight bytes after the sign, so it returns `None` near the end of `text`.
#[inline]
pub(crate) fn quick_decimal(text: &[u8], start: usize, end: usize) -> Option<f64> {
    const POINTS: u64 = 0x2E2E_2E2E_2E2E_2E2E;
    const LOW_BITS: u64 = 0x7F7F_7F7F_7F7F_7F7F;
    let is_negative = *text.get(start)? == b'-';
    let start = start + usize::from(is_negative);
    let length = end.wrapping_sub(start);
    if length.wrapping_sub(1) >= 8 {
        return None;
    }
    let word = shift_in_zeros(u64::from_le_bytes(*text.get(start..)?.first_chunk::<8>()?), length);
    // The high bit of each byte that is a point.
    let difference = word ^ POINTS;
    let points = !(((difference & LOW_BITS) + LOW_BITS) | difference | LOW_BITS);
    let (digits, fraction) = if points == 0 {
        (word, 0)
    } else {
        if length == 1 {
            return None;
        }
        // Moves the digits before the point into its place.
        let point = points.trailing_zeros() - 7;
        let up_to_point = u64::MAX >> (56 - point);
        ((word & !up_to_point) | ((word << 8) & up_to_point) | u64::from(b'0'), (56 - point) / 8)
    };
    if !is_digits(digits) {
        return None;
    }
    let value = digits_value(digits) as f64 / POWERS_OF_TEN[fraction as usize];
    Some(f64::from_bits(value.to_bits() | (u64::from(is_negative) << 63)))
}

/// Python rejects integers of more than 4300 digits.
const NUMBER_BYTES_MAX: usize = 4000;

/// Returns whether a word is a number of JSON.
pub(crate) fn is_number(word: &[u8]) -> bool {
    if word.len() > NUMBER_BYTES_MAX {
        return false;
    }
    let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut rest = word.strip_prefix(b"-").unwrap_or(word);
    let whole = digits(rest);
    if whole == 0 || (whole > 1 && rest[0] == b'0') {
        return false;
    }
    rest = &rest[whole..];
    if let Some(fraction) = rest.strip_prefix(b".") {
        let length = digits(fraction);
        if length == 0 {
            return false;
        }
        rest = &fraction[length..];
    }
    if let [b'e' | b'E', exponent @ ..] = rest {
        let exponent =
            exponent.strip_prefix(b"-").or_else(|| exponent.strip_prefix(b"+")).unwrap_or(exponent);
        let length = digits(exponent);
        if length == 0 {
            return false;
        }
        rest = &exponent[length..];
    }
    rest.is_empty()
}

/// Parses a truth value in any recognised notation.
pub(crate) fn parse_boolean(cell: &[u8]) -> Option<bool> {
    match cell {
        b"1" | b"T" | b"Y" => Some(true),
        b"0" | b"F" | b"N" => Some(false),
        _ if cell.eq_ignore_ascii_case(b"true") => Some(true),
        _ if cell.eq_ignore_ascii_case(b"false") => Some(false),
        _ => None,
    }
}

/// Parses a truth value as `pandas.read_csv` does: a word.
pub(crate) fn parse_truth(cell: &[u8]) -> Option<bool> {
    match cell {
        _ if cell.eq_ignore_ascii_case(b"true") => Some(true),
        _ if cell.eq_ignore_ascii_case(b"false") => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn integers() {
        for (text, value) in [
            ("0", Some(0)),
            ("007", Some(7)),
            ("+3", Some(3)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
            ("-", None),
            ("", None),
            ("+-3", None),
            ("1.0", None),
            ("0x10", None),
            ("1_0", None),
        ] {
            assert_eq!(parse_integer(text.as_bytes()), value, "{text}");
        }
    }

    #[test]
    fn floats() {
        for (text, value) in [
            ("1.5", Some(1.5)),
            (".5", Some(0.5)),
            ("5.", Some(5.0)),
            ("-1e-3", Some(-0.001)),
            ("1E5", Some(1e5)),
            ("inf", Some(f64::INFINITY)),
            ("-Infinity", Some(f64::NEG_INFINITY)),
            (".", None),
            ("", None),
            ("+-5", None),
            ("1,5", None),
            ("5%", None),
            ("0x10", None),
            ("1.2.3", None),
            ("infinite", None),
        ] {
            assert_eq!(parse_float(text.as_bytes()), value, "{text}");
        }
        assert!(parse_float(b"NaN").is_some_and(f64::is_nan));
        assert_eq!(parse_float(b"-0.0").map(f64::to_bits), Some((-0.0f64).to_bits()));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5000))]
        #[test]
        fn decimals_are_rounded_as_the_standard_library_does(text in r"[0-9]{0,12}\.?[0-9]{0,12}") {
            prop_assert_eq!(parse_float(text.as_bytes()), text.parse::<f64>().ok());
        }

        #[test]
        fn quick_decimals_are_the_same(before in ".{0,3}", text in r"-?([0-9]{0,9}\.?[0-9]{0,9}|[0-9.:/,é-]{0,17})", behind in ".{0,20}") {
            let whole = format!("{before}{text}{behind}");
            let is_easy = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') && (1..=8).contains(&text.len());
            match quick_decimal(whole.as_bytes(), before.len(), before.len() + text.len()) {
                Some(value) => prop_assert_eq!(Some(value.to_bits()), text.parse::<f64>().ok().map(f64::to_bits)),
                None => prop_assert!(!is_easy || behind.len() < 8 || text.parse::<f64>().is_err()),
            }
        }

        #[test]
        fn short_digits_agree_with_the_loop(before in ".{0,3}", text in "[0-9a/:.+ -]{0,10}", behind in ".{0,9}") {
            let whole = format!("{before}{text}{behind}");
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            match short_digits(whole.as_bytes(), before.len(), text.len()) {
                Some(value) => prop_assert_eq!(text.parse::<u64>().ok(), Some(value)),
                None => prop_assert!(!digits || text.is_empty() || text.len() > 8 || behind.len() < 8),
            }
        }

        #[test]
        fn any_integer_comes_back(value: i64) {
            prop_assert_eq!(parse_integer(value.to_string().as_bytes()), Some(value));
        }
    }
}
