//! The clock of a reader that shows one moment: its periodic work never begins.
//!
//! A reader of SlateDB looks for newer contents right after it was opened, and then at intervals; what it shows would
//! change between two reads.

use std::future::{Future, pending};
use std::pin::Pin;
use std::time::Duration;

use chrono::{DateTime, Utc};
use slatedb_common::clock::{DefaultSystemClock, SystemClock, SystemClockTicker};

/// The clock. It shows the time, and no ticker of it ticks.
#[derive(Debug, Default)]
pub(crate) struct StillClock {
    time: DefaultSystemClock,
    tickers: Sleeper,
}

/// The clock of the tickers: who sleeps by it does not wake.
#[derive(Debug, Default)]
struct Sleeper(DefaultSystemClock);

type Sleep<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

impl SystemClock for StillClock {
    fn now(&self) -> DateTime<Utc> {
        self.time.now()
    }

    fn sleep<'a>(&'a self, duration: Duration) -> Sleep<'a> {
        self.time.sleep(duration)
    }

    fn ticker<'a>(&'a self, duration: Duration) -> SystemClockTicker<'a> {
        SystemClockTicker::new(&self.tickers, duration)
    }
}

impl SystemClock for Sleeper {
    fn now(&self) -> DateTime<Utc> {
        self.0.now()
    }

    fn sleep<'a>(&'a self, _: Duration) -> Sleep<'a> {
        Box::pin(pending())
    }

    fn ticker<'a>(&'a self, duration: Duration) -> SystemClockTicker<'a> {
        SystemClockTicker::new(self, duration)
    }
}
