//! The costs of the wire: a `ping` beside a bare echo, and a narrow query beside the same query in process.
//!
//! The echo is a second process of this program. It reads a message of any size with one call and answers one of
//! the size of the measured reply with one call: the least that a server can do. The client is the same for all.
//! All are measured in turns, so that other work on the machine disturbs all alike: the least of the rounds' medians
//! is the figure that it disturbs least.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nilometer_bson::{Document, DocumentBuilder, doc};

use super::figures::Figures;
use crate::data::DataSet;
use crate::load;
use crate::options::Options;
use crate::queries;
use crate::target::{Connection, Outcome, Target, run as call};

/// The narrow query.
const NARROW: &str = "single-groupby-1-1-1";

/// Rounds of a run.
const ROUNDS: usize = 40;

/// Calls of one kind in a round.
const CALLS: usize = 250;

/// Bytes of a message beside its document.
const FRAME_BYTES: usize = 21;

/// A message to the echo is smaller.
const ECHO_BYTES_MAX: usize = 64 * 1024;

/// What is measured, with the medians of its rounds.
struct Kind<'a> {
    connection: &'a mut dyn Connection,
    commands: &'a [Document],
    medians: Vec<Duration>,
}

impl Kind<'_> {
    fn round(&mut self) -> Outcome {
        let mut latencies = Vec::with_capacity(CALLS);
        for command in self.commands.iter().cycle().take(CALLS) {
            let start = Instant::now();
            call(self.connection, command, None)?;
            latencies.push(start.elapsed());
        }
        self.medians.push(median(latencies));
        Ok(())
    }

    /// Returns the least and the middle median of a round, in microseconds.
    fn figures(&self) -> [f64; 2] {
        let least = self.medians.iter().min().copied().unwrap_or_default();
        [micros(least), micros(median(self.medians.clone()))]
    }
}

fn median(mut durations: Vec<Duration>) -> Duration {
    durations.sort_unstable();
    let middle = durations.get(durations.len() / 2);
    middle.copied().unwrap_or_default()
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

pub(crate) fn run(options: &Options) -> Outcome<Figures> {
    if options.in_process.is_some() {
        return Err("the pattern wire needs --uri".to_string());
    }
    let directory = std::env::temp_dir().join(format!("nilometer-wire-{}", std::process::id()));
    let measured = measure(options, &directory);
    // Remains would be in the temporary directory.
    drop(std::fs::remove_dir_all(&directory));
    measured
}

fn measure(options: &Options, directory: &std::path::Path) -> Outcome<Figures> {
    let data = DataSet::generate(options);
    let inside = Options {
        in_process: Some(directory.display().to_string()),
        ..options.clone()
    };
    let (mut server, mut inside) = (Target::open(options)?, Target::open(&inside)?);
    for target in [&mut server, &mut inside] {
        load::prepare(target.first(), options)?;
        load::run(&mut target.connections, &data, options)?;
        target.settle()?;
    }
    let ping = [doc! { "ping": 1, "$db": &options.database }];
    let narrow = queries::commands(NARROW, &data, options);
    let (ping_echo, ping_bytes) = Echo::of(server.first(), &ping)?;
    let (narrow_echo, narrow_bytes) = Echo::of(server.first(), &narrow)?;
    let connect = |echo: &Echo| Target::open(&echo.options());
    let (mut ping_target, mut narrow_target) = (connect(&ping_echo)?, connect(&narrow_echo)?);
    let mut second = Target::open(options)?;
    let kind = |connection, commands| Kind {
        connection,
        commands,
        medians: Vec::new(),
    };
    let mut kinds = [
        kind(ping_target.first(), &ping[..]),
        kind(server.first(), &ping),
        kind(narrow_target.first(), &narrow),
        kind(second.first(), &narrow),
        kind(inside.first(), &narrow),
    ];
    for round in 0..=ROUNDS {
        for kind in &mut kinds {
            kind.round()?;
            if round == 0 {
                kind.medians.clear();
            }
        }
    }
    let mut notes = notes(kinds.map(|kind| kind.figures()));
    let size = |bytes: usize| bytes.to_string();
    notes.push(("bytes of the answer to a ping", size(ping_bytes)));
    notes.push(("bytes of an answer to the narrow query", size(narrow_bytes)));
    Ok(Figures {
        rows: data.rows(),
        bson_bytes: (data.rows() * data.encoder(options).document_length()) as u64,
        notes,
        ..Figures::default()
    })
}

/// Returns the lines of the figures, each the least and the middle median of a round.
fn notes(figures: [[f64; 2]; 5]) -> Vec<(&'static str, String)> {
    let [ping_echo, ping, narrow_echo, narrow, inside] = figures;
    let [least, middle] = [0, 1];
    let text = |of: &dyn Fn(usize) -> f64, digits| {
        format!("{:.digits$} (middle {:.digits$})", of(least), of(middle))
    };
    vec![
        ("echo of a ping, µs", text(&|at| ping_echo[at], 1)),
        ("ping, µs", text(&|at| ping[at], 1)),
        (
            "ping, times of its echo",
            text(&|at| ping[at] / ping_echo[at], 2),
        ),
        (
            "echo of the narrow query, µs",
            text(&|at| narrow_echo[at], 1),
        ),
        ("narrow query over the wire, µs", text(&|at| narrow[at], 1)),
        ("narrow query in process, µs", text(&|at| inside[at], 1)),
        (
            "… more over the wire, µs",
            text(&|at| narrow[at] - inside[at], 1),
        ),
    ]
}

/// A process that echoes.
struct Echo {
    process: Child,
    address: String,
}

impl Echo {
    /// Starts an echo whose replies are as large as the reply to the first of `commands`. The second value is their
    /// size.
    fn of(connection: &mut dyn Connection, commands: &[Document]) -> Outcome<(Self, usize)> {
        let command = commands.first().ok_or("no command")?;
        let reply = call(connection, command, None)?;
        let bytes = reply.as_bytes().len();
        let program = std::env::current_exe().map_err(|e| e.to_string())?;
        let mut process = Command::new(program)
            .args(["pattern", ECHO, &bytes.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("starting the echo: {e}"))?;
        let mut address = String::new();
        if let Some(out) = process.stdout.take() {
            let read = BufReader::new(out).read_line(&mut address);
            read.map_err(|e| format!("the echo: {e}"))?;
        }
        let address = address.trim().to_string();
        Ok((Self { process, address }, bytes + FRAME_BYTES))
    }

    fn options(&self) -> Options {
        Options {
            address: self.address.clone(),
            ..Options::default()
        }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        // It has ended already if its client has.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// The name under which this program runs as an echo.
pub(crate) const ECHO: &str = "echo";

/// Prints an address, and answers the messages of one connection there, with documents of `bytes` bytes.
pub(crate) fn echo(bytes: &str) -> Outcome {
    let bytes = bytes.parse().map_err(|_| format!("a size, not {bytes}"))?;
    let told = |e: std::io::Error| format!("the echo: {e}");
    let listener = TcpListener::bind("127.0.0.1:0").map_err(told)?;
    println!("{}", listener.local_addr().map_err(told)?);
    let (socket, _) = listener.accept().map_err(told)?;
    socket.set_nodelay(true).map_err(told)?;
    answer_all(socket, bytes).map_err(told)
}

/// Answers each message of a client that waits for the answer before it sends the next.
fn answer_all(mut socket: TcpStream, bytes: usize) -> std::io::Result<()> {
    let mut reply = reply(bytes);
    let mut message = vec![0; ECHO_BYTES_MAX];
    let mut have = 0;
    loop {
        let read = socket.read(&mut message[have..])?;
        if read == 0 {
            return Ok(());
        }
        have += read;
        let mut length = [0; 4];
        length.copy_from_slice(&message[..4]);
        if have >= 4 && have >= u32::from_le_bytes(length) as usize {
            reply[8..12].copy_from_slice(&message[4..8]);
            socket.write_all(&reply)?;
            have = 0;
        }
    }
}

/// Returns a reply whose document has `bytes` bytes, if it can be so small.
fn reply(bytes: usize) -> Vec<u8> {
    let document = |padding: usize| {
        let mut out = DocumentBuilder::new();
        out.append("ok", 1.0);
        if padding > 0 {
            out.append("", " ".repeat(padding - 1));
        }
        out.finish()
    };
    let shortest = document(1).as_bytes().len();
    let document = document((bytes + 1).saturating_sub(shortest));
    let mut message = Vec::new();
    let length = FRAME_BYTES + document.as_bytes().len();
    for word in [length as i32, 0, 0, 2013, 0] {
        message.extend_from_slice(&word.to_le_bytes());
    }
    message.push(0);
    message.extend_from_slice(document.as_bytes());
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_echo_has_the_size_of_what_it_stands_for() {
        let smallest = doc! { "ok": 1.0 }.as_bytes().len();
        for bytes in [smallest, smallest + 7, 60, 4000] {
            assert_eq!(reply(bytes).len(), bytes + FRAME_BYTES);
        }
    }

    #[test]
    fn an_echo_is_a_reply_to_its_message() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let options = Options {
            address: listener.local_addr().expect("an address").to_string(),
            ..Options::default()
        };
        let thread = std::thread::spawn(move || {
            let (socket, _) = listener.accept()?;
            answer_all(socket, 100)
        });
        let mut target = Target::open(&options).expect("a connection");
        for _ in 0..3 {
            let answer = call(target.first(), &doc! { "ping": 1 }, None).expect("an answer");
            assert_eq!(answer.as_bytes().len(), 100);
        }
        drop(target);
        thread.join().expect("a thread").expect("the end");
    }
}
