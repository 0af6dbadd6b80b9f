//! The server: everything between a socket and [`nilometer::Database::run_command`].
//!
//! The only crate that knows the wire format, sockets, signals and the command line. It knows
//! nothing about what commands do: a request goes into the database, a document comes out.
//!
//! Each connection has a thread that reads a message, runs the command and writes the answer.
//! Measured against tasks on an async runtime that hand commands to blocking threads (two cores,
//! 64-byte messages over loopback, 5 microseconds of work each), that made 96,000 requests a second against
//! 54,000 with 16 connections, and 100,000 against 49,000 with 64: the hop between threads costs
//! more than the command. Commands block on the disk anyway, so the threads would be there in any
//! case. A connection at rest costs its stack's touched pages; how many there may be is limited.

pub mod cli;
pub mod connection;
pub mod limits;
pub mod listener;
pub mod log;
pub mod machine;
pub mod registry;
pub mod server;
pub mod shutdown;
pub mod wire;
