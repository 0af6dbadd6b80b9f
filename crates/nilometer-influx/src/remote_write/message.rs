//! Messages of protocol buffers, read field by field.

/// A field of a message: its number and its value.
pub(super) enum WireValue<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32,
    Bytes(&'a [u8]),
}

/// A message that is read field by field.
pub(super) struct Message<'a>(pub(super) &'a [u8]);

impl<'a> Message<'a> {
    #[inline]
    fn varint(&mut self) -> Option<u64> {
        match self.0 {
            // Most are short.
            [byte @ ..0x80, rest @ ..] => {
                self.0 = rest;
                Some(u64::from(*byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7F);
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    #[inline]
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// Reads a field. `None` at the end, an error if the bytes are no field.
    #[inline]
    pub(super) fn next(&mut self) -> Option<Result<(u64, WireValue<'a>), &'static str>> {
        if self.0.is_empty() {
            return None;
        }
        let mut read = || {
            let key = self.varint()?;
            let value = match key & 7 {
                0 => WireValue::Varint(self.varint()?),
                1 => WireValue::Fixed64(u64::from_le_bytes(self.take(8)?.try_into().ok()?)),
                2 => {
                    let length = usize::try_from(self.varint()?).ok()?;
                    WireValue::Bytes(self.take(length)?)
                }
                5 => {
                    self.take(4)?;
                    WireValue::Fixed32
                }
                _ => return None,
            };
            Some((key >> 3, value))
        };
        Some(read().ok_or("the body is no WriteRequest of protocol buffers"))
    }
}

/// Returns name and value of a label.
#[inline]
pub(super) fn read_label(bytes: &[u8]) -> Result<(&[u8], &[u8]), &'static str> {
    // As Prometheus sends it: both, in this order, each shorter than 128 bytes.
    if let [0x0A, length @ ..0x80, rest @ ..] = bytes
        && let Some((name, [0x12, length @ ..0x80, value @ ..])) =
            rest.split_at_checked(usize::from(*length))
        && value.len() == usize::from(*length)
    {
        return Ok((name, value));
    }
    read_any_label(bytes)
}

fn read_any_label(bytes: &[u8]) -> Result<(&[u8], &[u8]), &'static str> {
    let (mut name, mut value): (&[u8], &[u8]) = (&[], &[]);
    let mut message = Message(bytes);
    while let Some(field) = message.next() {
        match field? {
            (1, WireValue::Bytes(bytes)) => name = bytes,
            (2, WireValue::Bytes(bytes)) => value = bytes,
            _ => {}
        }
    }
    Ok((name, value))
}

/// Returns time in ms and value of a sample.
pub(super) fn read_sample(bytes: &[u8]) -> Result<(i64, f64), &'static str> {
    let (mut value, mut time) = (0.0, 0_u64);
    let mut message = Message(bytes);
    while let Some(field) = message.next() {
        match field? {
            (1, WireValue::Fixed64(bits)) => value = f64::from_bits(bits),
            (2, WireValue::Varint(bits)) => time = bits,
            _ => {}
        }
    }
    Ok((time.cast_signed(), value))
}
