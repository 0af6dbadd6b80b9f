//! Dictionaries for the compression of skeletons with zstd.
//!
//! The number of a dictionary is the hash of its bytes. A reader of a stored bucket finds the dictionary by its number among
//! those of all databases in the process: equal numbers mean equal bytes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};

use zstd::zstd_safe::{self, CCtx, CDict, DCtx, DDict};

/// zstd level. Higher ones gain a few per cent at best and need several times the memory.
const ZSTD_LEVEL: i32 = 1;

/// The number of the built-in dictionary.
const BUILT_IN: u64 = 0;

/// The texts that every bucket repeats.
const BUILT_IN_BYTES: &[u8] = b"\x03control\0\x10version\0\x02\0\0\0\x03min\0\x03max\0\x10count\0\
    \x03meta\0\x03data\0\x07_id\0\x09timestamp\0\x09time\0\x01\x12\x10";

/// The dictionaries in use.
static KNOWN: RwLock<BTreeMap<u64, Weak<Dictionary>>> = RwLock::new(BTreeMap::new());

thread_local! {
    static COMPRESSOR: RefCell<CCtx<'static>> = RefCell::new(CCtx::create());
    static DECOMPRESSOR: RefCell<DCtx<'static>> = RefCell::new(DCtx::create());
}

/// Decompresses at most `length` bytes that need no dictionary.
pub(crate) fn decompress_plain(bytes: &[u8], length: usize) -> io::Result<Vec<u8>> {
    let mut out = Vec::with_capacity(length);
    let read = DECOMPRESSOR.with_borrow_mut(|context| context.decompress(&mut out, bytes));
    read.map_err(failure)?;
    Ok(out)
}

/// A dictionary, prepared for decompression.
pub(crate) struct Dictionary {
    number: u64,
    bytes: Box<[u8]>,
    /// Prepared for compression at the first write.
    compressor: OnceLock<CDict<'static>>,
    decompressor: DDict<'static>,
}

fn failure(code: zstd_safe::ErrorCode) -> io::Error {
    io::Error::other(format!("zstd: {}", zstd_safe::get_error_name(code)))
}

impl Dictionary {
    fn new(number: u64, bytes: &[u8]) -> Self {
        Self {
            number,
            bytes: bytes.into(),
            compressor: OnceLock::new(),
            decompressor: DDict::create(bytes),
        }
    }

    /// Returns the built-in dictionary.
    pub(crate) fn built_in() -> Arc<Self> {
        static DICTIONARY: OnceLock<Arc<Dictionary>> = OnceLock::new();
        let made = || Arc::new(Self::new(BUILT_IN, BUILT_IN_BYTES));
        DICTIONARY.get_or_init(made).clone()
    }

    /// Returns the dictionary with these bytes and registers its number for as long as it is referenced.
    pub(crate) fn of(bytes: &[u8]) -> Arc<Self> {
        let number = Self::number_of(bytes);
        let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = known.get(&number).and_then(Weak::upgrade) {
            return there;
        }
        known.retain(|_, held| held.strong_count() > 0);
        let made = Arc::new(Self::new(number, bytes));
        known.insert(number, Arc::downgrade(&made));
        made
    }

    /// Returns the dictionary with this number, if it is registered.
    pub(crate) fn with_number(number: u64) -> Option<Arc<Self>> {
        if number == BUILT_IN {
            return Some(Self::built_in());
        }
        let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner);
        known.get(&number)?.upgrade()
    }

    /// Returns the number of a dictionary with these bytes.
    pub(crate) fn number_of(bytes: &[u8]) -> u64 {
        xxhash_rust::xxh3::xxh3_64(bytes).max(BUILT_IN + 1)
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn compress(&self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let dictionary = self
            .compressor
            .get_or_init(|| CDict::create(&self.bytes, ZSTD_LEVEL));
        let mut out = Vec::with_capacity(zstd_safe::compress_bound(bytes.len()));
        COMPRESSOR
            .with_borrow_mut(|context| context.compress_using_cdict(&mut out, bytes, dictionary))
            .map_err(failure)?;
        Ok(out)
    }

    /// Decompresses a skeleton of at most `length` bytes.
    pub(crate) fn decompress(&self, bytes: &[u8], length: usize) -> io::Result<Vec<u8>> {
        let mut out = Vec::with_capacity(length);
        let read = DECOMPRESSOR.with_borrow_mut(|context| {
            context.decompress_using_ddict(&mut out, bytes, &self.decompressor)
        });
        read.map_err(failure)?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dictionaries_are_found_by_their_bytes_as_long_as_they_are_held() {
        let bytes = b"what all of them have in common, again and again";
        let one = Dictionary::of(bytes);
        let other = Dictionary::of(bytes);
        assert!(Arc::ptr_eq(&one, &other));
        let number = one.number();
        let found = Dictionary::with_number(number).unwrap();
        let packed = one.compress(b"in common, again").unwrap();
        assert_eq!(found.decompress(&packed, 100).unwrap(), b"in common, again");
        assert!(found.decompress(&packed, 3).is_err());
        drop((one, other, found));
        assert!(Dictionary::with_number(number).is_none());
        assert!(Dictionary::with_number(0).is_some());
    }
}
