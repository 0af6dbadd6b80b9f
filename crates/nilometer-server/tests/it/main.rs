//! The built server, spoken to over a socket in raw bytes.

mod client;
mod commands;
mod malformed;
mod messages;
mod process;
mod server;
mod writes;
