//! The server: everything between a socket and [`nilometer::Database::run_command`].
//!
//! This is the only crate that knows the wire format, sockets, signals and the command line. It does not know what
//! commands do: it passes a request to the database and sends the resulting document.
//!
//! Each active connection has a thread that reads a message, runs the command and writes the answer;
//! `docs/decisions/0002-thread-per-connection.md` gives the reasons against an async runtime.

mod audit;
mod awaited_hello;
/// Version of the program, with the commit it was built from.
pub const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("NILOMETER_COMMIT"),
    ")"
);

pub mod cli;
#[cfg(feature = "cluster")]
mod cluster;
mod columns;
mod command;
pub mod connection;
pub mod database_slot;
#[doc(hidden)]
pub mod fuzz;
pub mod http;
pub mod idle_connections;
pub mod limits;
pub mod listener;
pub mod log;
mod login;
pub mod machine;
pub mod message_memory;
pub mod registry;
pub mod server;
pub mod shutdown;
#[cfg(test)]
mod testing;
pub mod tls;
pub mod wire;
