//! The operator's guide, followed word by word: every `sh` block of `docs/operating.md`, from top to bottom, in one fresh
//! directory.
//!
//! A line is typed as it stands, but for port numbers, which are those of this run. `nilometer serve` goes on beside what
//! follows, until another server wants its port or a command its directory, as a person would end it with SIGTERM. Each
//! other command must end with code 0. The `yaml` block becomes `nilometer.yaml`. Blocks marked ```` ```sh example ```` name
//! things this machine has not, ```` ```sh long ```` take their time (NILOMETER_LONG=1); `js` blocks belong to the shell, which
//! conformance tests.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nilometer_bson::doc;

use crate::client::{Client, is_ok};
use crate::server::Directory;

/// The guide's ports.
const PORTS: [&str; 4] = ["28017", "28018", "28019", "28080"];

/// How long a server may take to start or to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// A block of code in the guide: what it is, and its lines.
#[derive(Debug, PartialEq)]
struct Block {
    info: String,
    lines: Vec<String>,
}

fn blocks(guide: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for line in guide.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(info), None) => {
                let (info, lines) = (info.to_owned(), Vec::new());
                open = Some(Block { info, lines });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some(block)) => block.lines.push(line.to_owned()),
            (None, None) => {}
        }
    }
    blocks
}

/// A server that was started as the guide says.
struct Serving {
    child: Child,
    port: u16,
    data: String,
    speaks_tls: bool,
}

impl Serving {
    fn end(mut self) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", "TERM", &id]).status();
        assert!(sent.expect("kill runs").success());
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                assert!(status.success(), "{status}");
                return;
            }
            assert!(Instant::now() < end, "a server does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Somebody who follows the guide.
struct Reader {
    directory: Directory,
    ports: BTreeMap<&'static str, u16>,
    serving: Vec<Serving>,
    commands: usize,
}

impl Drop for Reader {
    fn drop(&mut self) {
        for serving in &mut self.serving {
            drop(serving.child.kill());
            drop(serving.child.wait());
        }
    }
}

impl Reader {
    fn new() -> Self {
        let bound = PORTS.map(|port| (port, TcpListener::bind("127.0.0.1:0").expect("a port")));
        let number = |listener: &TcpListener| listener.local_addr().expect("an address").port();
        Self {
            directory: Directory::new(),
            ports: bound
                .iter()
                .map(|(port, listener)| (*port, number(listener)))
                .collect(),
            serving: Vec::new(),
            commands: 0,
        }
    }

    fn with_ports(&self, text: &str) -> String {
        let ports = self.ports.iter();
        ports.fold(text.to_owned(), |text, (port, ours)| {
            text.replace(port, &ours.to_string())
        })
    }

    fn shell(&self, line: &str) -> Command {
        let program = Path::new(env!("CARGO_BIN_EXE_nilometer"));
        let mut path = program.parent().expect("a folder").as_os_str().to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut command = Command::new("sh");
        command
            .args(["-c", line])
            .current_dir(&self.directory.0)
            .env("PATH", path);
        command
    }

    /// Ends the servers that `is_in_the_way` picks.
    fn end_where(&mut self, is_in_the_way: impl Fn(&Serving) -> bool) {
        let all = std::mem::take(&mut self.serving);
        for serving in all {
            match is_in_the_way(&serving) {
                true => serving.end(),
                false => self.serving.push(serving),
            }
        }
    }

    fn type_line(&mut self, line: &str) {
        self.commands += 1;
        let line = self.with_ports(line);
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.starts_with(&["nilometer", "serve"]) {
            return self.serve(&line, &words);
        }
        // Not a backup of a running server, but a look at its directory.
        let names = |data: &str| {
            words
                .iter()
                .any(|word| word.split('/').next() == Some(data))
        };
        self.end_where(|serving| names(&serving.data));
        let ended = self.shell(&line).output().expect("a shell");
        let told = String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned();
        assert_eq!(ended.status.code(), Some(0), "{line}\n{told}");
    }

    fn serve(&mut self, line: &str, words: &[&str]) {
        let option = |name: &str| {
            let at = words.iter().position(|word| *word == name)?;
            words.get(at + 1).map(|word| (*word).to_owned())
        };
        // What is not on the line is in the file, which is that of the first server.
        let first = self.ports[PORTS[0]].to_string();
        let port: u16 = option("--port").unwrap_or(first).parse().expect("a port");
        let data = option("--dbpath").unwrap_or_else(|| "data".to_owned());
        self.end_where(|serving| serving.port == port || serving.data == data);
        // `exec`, so that the signal reaches the program and not the shell.
        let mut command = self.shell(&format!("exec {line}"));
        let child = command.stdout(Stdio::null()).spawn().expect("a shell");
        let speaks_tls = words.contains(&"requireTLS");
        let mut serving = Serving {
            child,
            port,
            data,
            speaks_tls,
        };
        let end = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            let ended = serving.child.try_wait().expect("a child");
            assert!(ended.is_none() && Instant::now() < end, "{line}: {ended:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        if !serving.speaks_tls {
            assert!(
                is_ok(&Client::connect(port).run(&doc! {"ping": 1})),
                "{line}"
            );
        }
        self.serving.push(serving);
    }
}

fn guide() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operating.md")
}

#[test]
fn the_guide_can_be_followed_word_by_word() {
    let text = std::fs::read_to_string(guide()).expect("the guide");
    let mut reader = Reader::new();
    for block in blocks(&text) {
        match block.info.as_str() {
            "yaml" => {
                let text = reader.with_ports(&(block.lines.join("\n") + "\n"));
                let file = reader.directory.0.join("nilometer.yaml");
                std::fs::write(file, text).expect("a file");
            }
            "sh long" if std::env::var_os("NILOMETER_LONG").is_none() => {}
            "sh" | "sh long" => {
                // A line may go on in the next.
                let lines = block.lines.join("\n").replace("\\\n", " ");
                lines.lines().for_each(|line| reader.type_line(line));
            }
            "sh example" | "js" => {}
            other => panic!("what is a block of `{other}`?"),
        }
    }
    let made = |name: &str| reader.directory.0.join(name).exists();
    for name in [
        "nilometer.log",
        "beds.csv",
        "copy",
        "data2",
        "saved",
        "audit.json",
    ] {
        assert!(made(name), "the guide makes {name}");
    }
    assert!(reader.commands > 12, "{} commands", reader.commands);
}

#[test]
fn blocks_are_found() {
    let found = blocks("a\n```sh\none\ntwo\n```\nb\n```yaml\n```\n");
    let block = |info: &str, lines: &[&str]| Block {
        info: info.to_owned(),
        lines: lines.iter().map(|line| (*line).to_owned()).collect(),
    };
    assert_eq!(found, [block("sh", &["one", "two"]), block("yaml", &[])]);
}
