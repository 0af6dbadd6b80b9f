//! Calendar and time zones: arithmetic on milliseconds since 1970, without BSON.
//!
//! ```text
//! instant (ms, UTC) ──zone.to_local──▶ local ms ──civil_date──▶ year, month, day, week …
//!                   ◀─zone.to_utc────            ◀─────────────
//! ```
//!
//! The calendar is the proleptic Gregorian one over the whole range of a 64-bit date, about 292
//! million years in each direction. Zones are read from the database compiled into the program,
//! never from the machine, so results are the same everywhere. This module has no clock.
//! [`nilometer_bson::civil_date`] converts days to dates.
//!
//! Kernels call [`date_trunc_ms`] for every value of a block.

mod add;
mod diff;
mod format;
mod parse;
mod parse_format;
mod trunc;
mod unit;
mod zone;

use nilometer_bson::civil_date::DAY_MS;

pub use add::{AddError, add};
pub use diff::diff;
pub use format::{DateFormat, FormatError};
pub use parse::parse_date;
pub use trunc::date_trunc_ms;
pub use unit::{Unit, Weekday};
pub use zone::TimeZone;

/// 2000-01-01 in days since 1970: the origin of the bins of `$dateTrunc`.
const REFERENCE_DAYS: i64 = 10_957;
/// 2000-01-01T00:00 in milliseconds since 1970.
const REFERENCE_MS: i64 = REFERENCE_DAYS * DAY_MS;
