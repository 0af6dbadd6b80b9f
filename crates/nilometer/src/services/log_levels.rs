//! The verbosity of the log, by component.
//!
//! ```text
//! 0        errors, warnings and information
//! 1        also debugging output
//! 2 to 5   also tracing
//! -1       that of the component above; at the top 0
//! ```
//!
//! `setParameter` changes it while the server runs; the log reads it for each event above 0.

use std::sync::atomic::{AtomicI32, Ordering};

use nilometer_bson::{DocRef, Document, DocumentBuilder, ValueRef};

use crate::error::{Error, Result};

/// The largest verbosity.
pub const VERBOSITY_MAX: i32 = 5;

/// Stands for the verbosity of the component above.
const INHERITED: i32 = -1;

/// A component: its name in `logComponentVerbosity`, its abbreviation in the log, and the position of the component
/// above it.
struct Component {
    name: &'static str,
    abbreviation: &'static str,
    above: usize,
}

const fn component(name: &'static str, abbreviation: &'static str, above: usize) -> Component {
    Component {
        name,
        abbreviation,
        above,
    }
}

/// Position of the whole log in [`COMPONENTS`].
const ALL: usize = 0;

/// Position of `storage` in [`COMPONENTS`].
const STORAGE: usize = 12;

/// The components, each after the one above it.
const COMPONENTS: [Component; 16] = [
    component("", "default", ALL),
    component("accessControl", "ACCESS", ALL),
    component("assert", "ASSERT", ALL),
    component("command", "COMMAND", ALL),
    component("control", "CONTROL", ALL),
    component("ftdc", "FTDC", ALL),
    component("geo", "GEO", ALL),
    component("index", "INDEX", ALL),
    component("network", "NETWORK", ALL),
    component("query", "QUERY", ALL),
    component("replication", "REPL", ALL),
    component("sharding", "SHARDING", ALL),
    component("storage", "STORAGE", ALL),
    component("journal", "JOURNAL", STORAGE),
    component("recovery", "RECOVERY", STORAGE),
    component("write", "WRITE", ALL),
];

/// The verbosity of each component.
#[derive(Debug)]
pub struct LogLevels([AtomicI32; COMPONENTS.len()]);

impl Default for LogLevels {
    fn default() -> Self {
        let levels = Self(std::array::from_fn(|_| AtomicI32::new(INHERITED)));
        levels.set_at(ALL, 0);
        levels
    }
}

impl LogLevels {
    fn at(&self, position: usize) -> i32 {
        self.0[position].load(Ordering::Relaxed)
    }

    fn set_at(&self, position: usize, verbosity: i32) {
        self.0[position].store(verbosity, Ordering::Relaxed);
    }

    /// Returns the verbosity of the component with this abbreviation; that of the whole log for an unknown one.
    pub fn of(&self, abbreviation: &str) -> i32 {
        let known = COMPONENTS
            .iter()
            .position(|c| c.abbreviation == abbreviation);
        let mut position = known.unwrap_or(ALL);
        loop {
            match self.at(position) {
                INHERITED if position != ALL => position = COMPONENTS[position].above,
                verbosity => return verbosity.max(0),
            }
        }
    }

    /// Returns the greatest verbosity of all components.
    pub fn greatest(&self) -> i32 {
        let all = (0..COMPONENTS.len()).map(|position| self.at(position));
        all.max().unwrap_or(0).max(0)
    }

    /// Returns the verbosity of the whole log: the parameter `logLevel`.
    pub fn level(&self) -> i32 {
        self.at(ALL).max(0)
    }

    /// Sets the verbosity of the whole log.
    pub fn set_level(&self, verbosity: i32) {
        self.set_at(ALL, verbosity.clamp(0, VERBOSITY_MAX));
    }

    /// Returns the parameter `logComponentVerbosity`.
    pub fn to_document(&self) -> Document {
        let mut out = DocumentBuilder::new();
        out.append("verbosity", self.at(ALL));
        for (position, component) in COMPONENTS.iter().enumerate() {
            if position == ALL || component.above != ALL {
                continue;
            }
            out.begin_document(component.name);
            out.append("verbosity", self.at(position));
            for (below, component) in COMPONENTS.iter().enumerate() {
                if below != ALL && component.above == position {
                    out.begin_document(component.name);
                    out.append("verbosity", self.at(below));
                    out.end();
                }
            }
            out.end();
        }
        out.finish()
    }

    /// Fails if [`LogLevels::set`] would fail.
    pub fn check(given: DocRef<'_>) -> Result<()> {
        changes(given, ALL, &mut Vec::new())
    }

    /// Sets the components in a `logComponentVerbosity`; the others keep their verbosity.
    pub fn set(&self, given: DocRef<'_>) -> Result<()> {
        let mut wanted = Vec::new();
        changes(given, ALL, &mut wanted)?;
        for (position, verbosity) in wanted {
            self.set_at(position, verbosity);
        }
        Ok(())
    }
}

/// Collects the changes that a document asks for below the component at `above`.
fn changes(given: DocRef<'_>, above: usize, out: &mut Vec<(usize, i32)>) -> Result<()> {
    for element in given {
        let (name, value) = (element.name(), element.value());
        if name == "verbosity" {
            out.push((above, verbosity(name, value)?));
            continue;
        }
        let mut components = COMPONENTS.iter();
        let position = components.position(|c| c.name == name && !name.is_empty());
        let below = position.filter(|at| COMPONENTS[*at].above == above);
        match (below, value) {
            (Some(at), ValueRef::Document(nested)) => changes(nested, at, out)?,
            (Some(at), value) => out.push((at, verbosity(name, value)?)),
            (None, _) => {
                return Err(Error::bad_value(format!(
                    "Invalid component name logComponentVerbosity.{name}"
                )));
            }
        }
    }
    Ok(())
}

fn verbosity(name: &str, value: ValueRef<'_>) -> Result<i32> {
    let number = value.as_exact_i64().and_then(|n| i32::try_from(n).ok());
    match number {
        Some(number) if (INHERITED..=VERBOSITY_MAX).contains(&number) => Ok(number),
        _ => Err(Error::bad_value(format!(
            "the log verbosity '{name}' must be a number from {INHERITED} to {VERBOSITY_MAX}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::doc;

    #[test]
    fn components_inherit_the_verbosity_above_them() {
        let levels = LogLevels::default();
        assert_eq!(levels.of("NETWORK"), 0);
        let given = doc! {"verbosity": 1, "storage": doc! {"verbosity": 2, "journal": doc! {"verbosity": 0}}};
        levels.set(given.as_ref()).unwrap();
        assert_eq!((levels.of("NETWORK"), levels.of("STORAGE")), (1, 2));
        assert_eq!((levels.of("JOURNAL"), levels.of("RECOVERY")), (0, 2));
        assert_eq!((levels.of("?"), levels.greatest()), (1, 2));
        levels.set(doc! {"storage": -1}.as_ref()).unwrap();
        assert_eq!((levels.of("STORAGE"), levels.of("RECOVERY")), (1, 1));
        let shown = levels.to_document();
        assert!(LogLevels::check(shown.as_ref()).is_ok());
        for bad in [
            doc! {"nonsense": 1},
            doc! {"verbosity": 6},
            doc! {"journal": 1},
        ] {
            assert!(levels.set(bad.as_ref()).is_err(), "{bad:?}");
        }
    }
}
