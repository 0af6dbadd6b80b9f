//! Text forms of binary data: the formats of `$convert`.

/// A text form of binary data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum BinaryFormat {
    /// Standard UUID form for a UUID, else base64.
    Auto,
    Base64,
    Base64Url,
    Hex,
    Utf8,
    Uuid,
}

impl BinaryFormat {
    pub(super) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "auto" => Self::Auto,
            "base64" => Self::Base64,
            "base64url" => Self::Base64Url,
            "hex" => Self::Hex,
            "utf8" => Self::Utf8,
            "uuid" => Self::Uuid,
            _ => return None,
        })
    }
}

const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
/// Positions of the dashes in a UUID, counted in digits.
const UUID_DASHES: [usize; 4] = [8, 12, 16, 20];

/// Encodes bytes as text; `None` if they have no text in this form.
pub(super) fn encode(bytes: &[u8], is_uuid: bool, format: BinaryFormat) -> Option<String> {
    match format {
        BinaryFormat::Auto if is_uuid => encode(bytes, is_uuid, BinaryFormat::Uuid),
        BinaryFormat::Auto | BinaryFormat::Base64 => Some(base64(bytes, STANDARD, true)),
        BinaryFormat::Base64Url => Some(base64(bytes, URL, false)),
        BinaryFormat::Hex => Some(bytes.iter().map(|b| format!("{b:02X}")).collect()),
        BinaryFormat::Utf8 => std::str::from_utf8(bytes).ok().map(str::to_owned),
        BinaryFormat::Uuid if is_uuid && bytes.len() == 16 => {
            let mut out = String::with_capacity(36);
            for (at, byte) in bytes.iter().enumerate() {
                if UUID_DASHES.contains(&(at * 2)) {
                    out.push('-');
                }
                out.push_str(&format!("{byte:02x}"));
            }
            Some(out)
        }
        BinaryFormat::Uuid => None,
    }
}

/// Decodes text to bytes; `None` if it is not in this form.
pub(super) fn decode(text: &str, to_uuid: bool, format: BinaryFormat) -> Option<Vec<u8>> {
    // A UUID has exactly one text form.
    if to_uuid != matches!(format, BinaryFormat::Uuid) && !(to_uuid && format == BinaryFormat::Auto)
    {
        return None;
    }
    match format {
        BinaryFormat::Auto if to_uuid => decode(text, to_uuid, BinaryFormat::Uuid),
        BinaryFormat::Auto => None,
        BinaryFormat::Base64 => unbase64(text, STANDARD, true),
        BinaryFormat::Base64Url => unbase64(text, URL, false),
        BinaryFormat::Hex => unhex(text.bytes()),
        BinaryFormat::Utf8 => Some(text.as_bytes().to_vec()),
        BinaryFormat::Uuid => {
            let shape = text.len() == 36
                && text
                    .bytes()
                    .enumerate()
                    .all(|(at, b)| (b == b'-') == [8, 13, 18, 23].contains(&at));
            shape
                .then(|| unhex(text.bytes().filter(|b| *b != b'-')))
                .flatten()
        }
    }
}

fn base64(bytes: &[u8], alphabet: &[u8; 64], pad: bool) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let bits = chunk
            .iter()
            .fold(0u32, |bits, byte| bits << 8 | u32::from(*byte))
            << (8 * (3 - chunk.len()));
        for at in 0..4 {
            if at <= chunk.len() {
                let index = (bits >> (18 - 6 * at)) as usize & 63;
                out.push(char::from(alphabet[index]));
            } else if pad {
                out.push('=');
            }
        }
    }
    out
}

fn unbase64(text: &str, alphabet: &[u8; 64], padded: bool) -> Option<Vec<u8>> {
    let bytes = text.as_bytes();
    if padded && !bytes.len().is_multiple_of(4) {
        return None;
    }
    let digits = match bytes {
        [rest @ .., b'=', b'='] | [rest @ .., b'='] => rest,
        all => all,
    };
    if digits.len() % 4 == 1 {
        return None;
    }
    let mut out = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for chunk in digits.chunks(4) {
        let mut bits = 0u32;
        for digit in chunk {
            let value = alphabet.iter().position(|known| known == digit)?;
            bits = bits << 6 | u32::try_from(value).ok()?;
        }
        bits <<= 6 * (4 - chunk.len());
        let [_, a, b, c] = bits.to_be_bytes();
        out.extend([a, b, c].into_iter().take(chunk.len() - 1));
    }
    Some(out)
}

fn unhex(digits: impl Iterator<Item = u8>) -> Option<Vec<u8>> {
    let values: Option<Vec<u8>> = digits
        .map(|b| {
            char::from(b)
                .to_digit(16)
                .and_then(|v| u8::try_from(v).ok())
        })
        .collect();
    let values = values?;
    if !values.len().is_multiple_of(2) {
        return None;
    }
    Some(
        values
            .chunks(2)
            .map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_and_forth() {
        for length in 0..20u8 {
            let bytes: Vec<u8> = (0..length).map(|b| b.wrapping_mul(77)).collect();
            for format in [
                BinaryFormat::Base64,
                BinaryFormat::Base64Url,
                BinaryFormat::Hex,
            ] {
                let text = encode(&bytes, false, format).unwrap();
                assert_eq!(
                    decode(&text, false, format).as_ref(),
                    Some(&bytes),
                    "{text}"
                );
            }
        }
        assert_eq!(encode(b"ab", false, BinaryFormat::Base64).unwrap(), "YWI=");
        assert_eq!(
            encode(b"ab", false, BinaryFormat::Base64Url).unwrap(),
            "YWI"
        );
    }

    #[test]
    fn malformed() {
        for (text, uuid, format) in [
            ("YWI", false, BinaryFormat::Base64),
            ("Y", false, BinaryFormat::Base64Url),
            ("YW!=", false, BinaryFormat::Base64),
            ("abc", false, BinaryFormat::Hex),
            ("xx", false, BinaryFormat::Hex),
            ("0011", true, BinaryFormat::Hex),
            (
                "00112233-4455-6677-8899-aabbccddeef",
                true,
                BinaryFormat::Uuid,
            ),
            (
                "001122334-455-6677-8899-aabbccddeeff",
                true,
                BinaryFormat::Uuid,
            ),
        ] {
            assert_eq!(decode(text, uuid, format), None, "{text}");
        }
    }
}
