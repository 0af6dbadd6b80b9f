//! Names of fields, each kept once for all buckets of a collection.
//!
//! A table finds a name by how it begins, so that a field whose name has not been read to its end is told from
//! others by a few comparisons. It is a shortcut: names that do not fit into it are found by the columns of their bucket.
//! Commands take a copy, which is shared until they add to it, and leave theirs behind when it has grown.

use std::sync::Arc;

use nilometer_bson::KnownName;

/// Names of one collection that are kept.
const NAMES_MAX: usize = 1024;

/// Chains of names that begin alike, or seem to.
const CHAINS: usize = 256;

/// Bytes that make a beginning.
const BEGINNING_BYTES: usize = 8;

const LOW_BITS: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// The first bytes of a name, those behind its end zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Beginning(u64);

impl Beginning {
    fn of(name: &[u8]) -> Self {
        let mut bytes = [0; BEGINNING_BYTES];
        for (to, from) in bytes.iter_mut().zip(name) {
            *to = *from;
        }
        Self(u64::from_le_bytes(bytes))
    }

    /// Of the name at the front of `bytes`, which ends with a zero; `None` where too few bytes follow to tell.
    #[inline]
    pub(crate) fn at(bytes: &[u8]) -> Option<Self> {
        let word = u64::from_le_bytes(*bytes.first_chunk::<BEGINNING_BYTES>()?);
        // The lowest mark is exact; those above it may not be.
        let zeros = word.wrapping_sub(LOW_BITS) & !word & HIGH_BITS;
        let before_zero = zeros.wrapping_sub(1) & !zeros;
        // All ones where there is no zero; else those of the bytes before it and seven more.
        Some(Self(word & before_zero))
    }

    fn chain(self) -> usize {
        let spread = self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (spread >> 56) as usize % CHAINS
    }
}

#[derive(Clone, Debug)]
struct Known {
    name: Arc<str>,
    known: KnownName,
    beginning: Beginning,
    /// The one before it in its chain.
    next: Option<u16>,
}

#[derive(Clone, Debug)]
struct Table {
    known: Vec<Known>,
    /// The last name of each chain.
    chains: Vec<Option<u16>>,
}

/// Names by place.
#[derive(Clone, Debug)]
pub(crate) struct Names(Arc<Table>);

impl Default for Names {
    fn default() -> Self {
        Self(Arc::new(Table {
            known: Vec::new(),
            chains: vec![None; CHAINS],
        }))
    }
}

impl Names {
    pub(crate) fn len(&self) -> usize {
        self.0.known.len()
    }

    /// The name at a place.
    #[inline]
    pub(crate) fn name(&self, place: u16) -> Option<&Arc<str>> {
        self.0
            .known
            .get(usize::from(place))
            .map(|known| &known.name)
    }

    /// The same, made ready to be looked for.
    #[inline]
    pub(crate) fn known(&self, place: u16) -> Option<&KnownName> {
        let known = self.0.known.get(usize::from(place));
        known.map(|known| &known.known)
    }

    /// The places of names that begin so.
    #[inline]
    pub(crate) fn alike(&self, beginning: Beginning) -> impl Iterator<Item = u16> {
        let mut next = self.0.chains.get(beginning.chain()).copied().flatten();
        std::iter::from_fn(move || {
            while let Some(place) = next {
                let known = self.0.known.get(usize::from(place))?;
                next = known.next;
                if known.beginning == beginning {
                    return Some(place);
                }
            }
            None
        })
    }

    /// The place of a name, which is made if there is none; `None` if the name is no UTF-8, or there are too many.
    pub(crate) fn place(&mut self, name: &[u8]) -> Option<u16> {
        let beginning = Beginning::of(name);
        let is_it = |place: &u16| self.name(*place).is_some_and(|n| n.as_bytes() == name);
        if let Some(place) = self.alike(beginning).find(is_it) {
            return Some(place);
        }
        let place = u16::try_from(self.len()).ok()?;
        if self.len() >= NAMES_MAX {
            return None;
        }
        let name: Arc<str> = std::str::from_utf8(name).ok()?.into();
        let table = Arc::make_mut(&mut self.0);
        let chain = table.chains.get_mut(beginning.chain())?;
        let next = chain.replace(place);
        table.known.push(Known {
            known: KnownName::new(name.as_bytes()),
            name,
            beginning,
            next,
        });
        Some(place)
    }

    /// The name, shared where that is possible.
    pub(crate) fn get(&mut self, name: &[u8]) -> Arc<str> {
        let place = self.place(name);
        match place.and_then(|place| self.name(place)) {
            Some(known) => known.clone(),
            None => String::from_utf8_lossy(name).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIKE_EACH_OTHER: [&str; 8] = [
        "",
        "a",
        "usage_u",
        "usage_us",
        "usage_user",
        "usage_guest",
        "usage_guest_nice",
        "\u{e4}",
    ];

    #[test]
    fn names_have_one_place_each_and_are_found_by_how_they_begin() {
        let mut names = Names::default();
        let places = LIKE_EACH_OTHER.map(|name| names.place(name.as_bytes()).unwrap());
        assert_eq!(places, [0, 1, 2, 3, 4, 5, 6, 7]);
        for (name, place) in LIKE_EACH_OTHER.into_iter().zip(places) {
            assert_eq!(names.place(name.as_bytes()), Some(place));
            let element = [name.as_bytes(), &[0, 200, 1, 0, 7, 7, 7, 7, 7]].concat();
            let beginning = Beginning::at(&element).unwrap();
            assert_eq!(beginning, Beginning::of(name.as_bytes()), "{name}");
            assert!(names.alike(beginning).any(|found| found == place), "{name}");
        }
        assert_eq!(names.len(), LIKE_EACH_OTHER.len());
        assert!(Beginning::at(b"usage_u").is_none());
    }

    #[test]
    fn a_copy_that_grows_leaves_the_first_alone() {
        let mut first = Names::default();
        let kept = first.get(b"a");
        let mut second = first.clone();
        second.get(b"b");
        assert_eq!((first.len(), second.len()), (1, 2));
        assert!(Arc::ptr_eq(&second.get(b"a"), &kept));
    }

    #[test]
    fn there_are_names_the_table_does_not_take() {
        let mut names = Names::default();
        assert_eq!(names.place(b"\xff"), None);
        assert_eq!(&*names.get(b"\xff"), "\u{fffd}");
        for n in 0..NAMES_MAX {
            names.place(format!("field {n}").as_bytes()).unwrap();
        }
        assert_eq!(names.place(b"one more"), None);
        assert_eq!(&*names.get(b"one more"), "one more");
        assert_eq!(names.place(b"field 7"), Some(7));
    }
}
