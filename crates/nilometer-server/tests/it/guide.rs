//! Executes the operator's guide: every `sh` and `js` block of `docs/operating.md`, from top to bottom, in one new
//! directory.
//!
//! Lines run unchanged except for port numbers, which are those of this run. `nilometer serve` keeps running until
//! another server needs its port or a command its directory, and is then ended with SIGTERM. Every other command must
//! end with code 0, or with 3 in a block marked ```` ```sh finds damage ````. The `yaml` block becomes
//! `nilometer.yaml`; a `toml` block configures another program. Blocks marked ```` ```sh example ```` need things this machine does not have, ```` ```sh long ````
//! take long (NILOMETER_LONG=1). Lines after `mongosh …` are typed into that shell, and a password if it prompts. The
//! shell needs Node, so the fast suite skips it: `cargo xtask guide` sets its path (NILOMETER_MONGOSH).

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nilometer_bson::doc;

use crate::client::{Client, is_ok};
use crate::server::Directory;

/// The guide's ports.
const PORTS: [&str; 4] = ["28017", "28018", "28019", "28080"];

/// Time for a server to start or to end, and for the shell to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The password typed at prompts.
const PASSWORD: &str = "a word of the flood";

/// Exit code of a command that found damage.
const DAMAGE: i32 = 3;

/// A code block of the guide: its info string and its lines.
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

/// A server started by the guide.
struct GuideServer {
    child: Child,
    port: u16,
    data: String,
    speaks_tls: bool,
}

impl GuideServer {
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

/// An open shell.
struct Shell {
    child: Child,
    keys: ChildStdin,
    shown: Arc<Mutex<Vec<u8>>>,
    read: usize,
}

impl Shell {
    /// Starts `mongosh` with the arguments of `line`.
    fn open(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("Node");
        let shown = Arc::<Mutex<Vec<u8>>>::default();
        let out: [Box<dyn Read + Send>; 2] = [
            Box::new(child.stdout.take().expect("a pipe")),
            Box::new(child.stderr.take().expect("a pipe")),
        ];
        for mut stream in out {
            let shown = Arc::clone(&shown);
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(length @ 1..) = stream.read(&mut bytes) {
                    let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
                    shown.extend_from_slice(&bytes[..length]);
                }
            });
        }
        let keys = child.stdin.take().expect("a pipe");
        let mut shell = Self {
            child,
            keys,
            shown,
            read: 0,
        };
        let greeting = shell.until_prompt();
        assert!(!greeting.contains("Error"), "{greeting}");
        shell
    }

    /// Returns its output up to the next prompt.
    fn until_prompt(&mut self) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let (new, all) = {
                let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
                let new = shown.get(self.read..).unwrap_or_default();
                (String::from_utf8_lossy(new).into_owned(), shown.len())
            };
            let asks = new.trim_end().ends_with("Enter password")
                || new.trim_end().ends_with("Enter password:");
            if asks {
                self.read = all;
                writeln!(self.keys, "{PASSWORD}").expect("it reads");
            } else if new.ends_with("> ") {
                self.read = all;
                return new;
            }
            let ended = self.child.try_wait().expect("a child");
            assert!(ended.is_none(), "the shell has ended: {new}");
            assert!(Instant::now() < end, "the shell does not answer: {new}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn type_line(&mut self, line: &str) {
        writeln!(self.keys, "{line}").expect("it reads");
        let answer = self.until_prompt();
        let is_refused = answer.contains("Error") || answer.contains("ok: 0");
        assert!(!is_refused, "{line}\n{answer}");
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Executes the guide.
struct GuideRunner {
    directory: Directory,
    ports: BTreeMap<&'static str, u16>,
    serving: Vec<GuideServer>,
    /// The program for `mongosh`, if there is one, and the open shell.
    mongosh: Option<PathBuf>,
    shell: Option<Shell>,
    commands: usize,
}

impl Drop for GuideRunner {
    fn drop(&mut self) {
        for serving in &mut self.serving {
            drop(serving.child.kill());
            drop(serving.child.wait());
        }
    }
}

impl GuideRunner {
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
            mongosh: std::env::var_os("NILOMETER_MONGOSH").map(PathBuf::from),
            shell: None,
            commands: 0,
        }
    }

    fn with_ports(&self, text: &str) -> String {
        let ports = self.ports.iter();
        ports.fold(text.to_owned(), |text, (port, ours)| {
            text.replace(port, &ours.to_string())
        })
    }

    fn command(&self, line: &str) -> Command {
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

    /// Ends the servers that `is_in_the_way` selects.
    fn end_where(&mut self, is_in_the_way: impl Fn(&GuideServer) -> bool) {
        let all = std::mem::take(&mut self.serving);
        for serving in all {
            match is_in_the_way(&serving) {
                true => serving.end(),
                false => self.serving.push(serving),
            }
        }
    }

    /// Runs a line that must end with `code`.
    fn type_line(&mut self, line: &str, code: i32) {
        self.commands += 1;
        self.shell = None;
        let line = self.with_ports(line);
        if let Some(arguments) = line.strip_prefix("mongosh ") {
            let mongosh = self.mongosh.clone();
            self.shell = mongosh.map(|path| self.open_shell(&path, arguments));
            return;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.starts_with(&["nilometer", "serve"]) {
            return self.serve(&line, &words);
        }
        // A command on the directory of a running server, not a backup.
        let names = |data: &str| {
            words
                .iter()
                .any(|word| word.split('/').next() == Some(data))
        };
        self.end_where(|serving| names(&serving.data));
        let ended = self.command(&line).output().expect("a shell");
        let told = String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned();
        assert_eq!(ended.status.code(), Some(code), "{line}\n{told}");
    }

    fn open_shell(&self, mongosh: &Path, arguments: &str) -> Shell {
        let line = format!(
            "exec node '{}' --quiet --norc {arguments}",
            mongosh.display()
        );
        let mut command = self.command(&line);
        command.env("HOME", &self.directory.0).env("NO_COLOR", "1");
        Shell::open(command)
    }

    /// Types a statement into the shell, if there is one.
    fn type_statement(&mut self, line: &str) {
        let line = self.with_ports(line);
        match &mut self.shell {
            Some(shell) => shell.type_line(&line),
            None => assert!(self.mongosh.is_none(), "into which shell? {line}"),
        }
    }

    fn serve(&mut self, line: &str, words: &[&str]) {
        let option = |name: &str| {
            let at = words.iter().position(|word| *word == name)?;
            words.get(at + 1).map(|word| (*word).to_owned())
        };
        // Options not on the line are in the file, which is that of the first server.
        let first = self.ports[PORTS[0]].to_string();
        let port: u16 = option("--port").unwrap_or(first).parse().expect("a port");
        let data = option("--dbpath").unwrap_or_else(|| "data".to_owned());
        self.end_where(|serving| serving.port == port || serving.data == data);
        // `exec`, so that the signal reaches the program and not the shell.
        let mut command = self.command(&format!("exec {line}"));
        let child = command.stdout(Stdio::null()).spawn().expect("a shell");
        let speaks_tls = words.contains(&"requireTLS");
        let mut serving = GuideServer {
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
    let mut reader = GuideRunner::new();
    for block in blocks(&text) {
        match block.info.as_str() {
            "yaml" => {
                let text = reader.with_ports(&(block.lines.join("\n") + "\n"));
                let file = reader.directory.0.join("nilometer.yaml");
                std::fs::write(file, text).expect("a file");
            }
            "sh long" if std::env::var_os("NILOMETER_LONG").is_none() => {}
            "sh" | "sh long" | "sh finds damage" => {
                let code = if block.info.ends_with("damage") {
                    DAMAGE
                } else {
                    0
                };
                // A line may continue on the next.
                let lines = block.lines.join("\n").replace("\\\n", " ");
                lines.lines().for_each(|line| reader.type_line(line, code));
            }
            "sh example" | "toml" | "py" => {}
            "js" => {
                let lines = block.lines.iter();
                lines.for_each(|line| reader.type_statement(line));
            }
            other => panic!("unknown block `{other}`"),
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
