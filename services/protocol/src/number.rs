//! Numbers as Python writes them: `repr(float)`, and `str` of NumPy's scalars.

use std::ops::Range;

pub use itoa::Integer;
pub use zmij::Float;

/// Appends an integer.
pub fn push_integer<I: Integer>(text: &mut Vec<u8>, value: I) {
    text.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Magnitudes that Python writes without an exponent, as `repr(float)` does. Zero is one of them.
pub const PYTHON_POSITIONAL: Range<f64> = 1e-4..1e16;

/// Appends the shortest text that reads back as `value`, or `inf`, `-inf`, `nan`.
///
/// `positional` is the range of magnitudes without an exponent; NumPy's depends on type and release.
pub fn push_float<F: Float + Into<f64> + Copy>(
    text: &mut Vec<u8>,
    value: F,
    positional: &Range<f64>,
) {
    let wide: f64 = value.into();
    if !wide.is_finite() {
        text.extend_from_slice(match wide {
            _ if wide.is_nan() => b"nan",
            _ if wide > 0.0 => b"inf",
            _ => b"-inf",
        });
        return;
    }
    let mut buffer = zmij::Buffer::new();
    let shortest = buffer.format_finite(value).as_bytes();
    let magnitude = wide.abs();
    let is_positional = magnitude == 0.0 || positional.contains(&magnitude);
    if is_positional && !shortest.contains(&b'e') {
        text.extend_from_slice(shortest);
    } else {
        lay_out(text, shortest, is_positional);
    }
}

/// Writes a number in any decimal notation as Python does.
fn lay_out(text: &mut Vec<u8>, shortest: &[u8], is_positional: bool) {
    let (is_negative, unsigned) = match shortest {
        [b'-', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let (mantissa, exponent) = match unsigned.iter().position(|&byte| byte == b'e') {
        Some(at) => (&unsigned[..at], parse_exponent(&unsigned[at + 1..])),
        None => (unsigned, 0),
    };
    let point = mantissa.iter().position(|&byte| byte == b'.').unwrap_or(mantissa.len());
    let mut digits = [0_u8; 40];
    let mut count = 0;
    let mut leading_zeros = 0;
    for &digit in mantissa.iter().filter(|&&byte| byte != b'.') {
        if count == 0 && digit == b'0' {
            leading_zeros += 1;
        } else {
            digits[count] = digit;
            count += 1;
        }
    }
    while count > 1 && digits[count - 1] == b'0' {
        count -= 1;
    }
    let digits = &digits[..count];
    // The value is 0.DIGITS × 10^scale.
    let scale = point as i32 - leading_zeros + exponent;
    if is_negative {
        text.push(b'-');
    }
    if !is_positional {
        text.push(digits[0]);
        if count > 1 {
            text.push(b'.');
            text.extend_from_slice(&digits[1..]);
        }
        let exponent = scale - 1;
        text.extend_from_slice(if exponent < 0 { b"e-" } else { b"e+" });
        if exponent.abs() < 10 {
            text.push(b'0');
        }
        push_integer(text, exponent.unsigned_abs());
    } else if scale <= 0 {
        text.extend_from_slice(b"0.");
        text.extend(std::iter::repeat_n(b'0', scale.unsigned_abs() as usize));
        text.extend_from_slice(digits);
    } else {
        let whole = scale as usize;
        text.extend_from_slice(&digits[..whole.min(count)]);
        text.extend(std::iter::repeat_n(b'0', whole.saturating_sub(count)));
        text.push(b'.');
        text.extend_from_slice(if count > whole { &digits[whole..] } else { b"0" });
    }
}

fn parse_exponent(text: &[u8]) -> i32 {
    let (sign, digits) = match text {
        [b'-', rest @ ..] => (-1, rest),
        [b'+', rest @ ..] => (1, rest),
        rest => (1, rest),
    };
    sign * digits.iter().fold(0, |value, digit| value * 10 + i32::from(digit - b'0'))
}
