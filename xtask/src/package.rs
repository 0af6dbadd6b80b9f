//! `cargo xtask package`: a Debian package of the server, from the release build of [`dist`].
//!
//! ```text
//! nilometer_VERSION_ARCH.deb (ar)
//! ├─ debian-binary        2.0
//! ├─ control.tar[.gz]     control, conffiles, postinst, prerm, postrm
//! └─ data.tar[.gz]        /usr/bin/nilometer, the unit, /etc/nilometer.yaml, man pages, completion, licence
//! ```
//!
//! The archives are written here, so that a machine with Rust alone makes the package. They are compressed if there is a
//! `gzip`; dpkg reads both. The same program gives the same package.
//!
//! The package starts nothing: `systemctl enable --now nilometer` does. Removing it stops the service and leaves the data.

mod archive;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::dist;
use crate::process::{Outcome, read, root, target_folder};
use archive::{Entry, ar, tar};

/// Path of the program in `packaging/nilometer.service`, and in the package: `/usr/local` belongs to the administrator.
const UNIT_PROGRAM: &str = "/usr/local/bin/nilometer";
const PROGRAM: &str = "/usr/bin/nilometer";

const CONFIGURATION: &str = "/etc/nilometer.yaml";

/// Builds the program, or takes the one at `program`, and writes the package.
pub(crate) fn build(program: Option<&str>) -> Outcome {
    let program = match program {
        Some(path) => PathBuf::from(path),
        None => {
            dist::build()?;
            dist::program()
        }
    };
    let package = Package::of(&program)?;
    let folder = target_folder().join("package");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let path = folder.join(package.file_name());
    let bytes = package.bytes()?;
    std::fs::write(&path, &bytes).map_err(|e| format!("{}: {e}", path.display()))?;
    println!("{} bytes: {}", bytes.len(), path.display());
    Ok(())
}

/// What a package is made from.
struct Package {
    program: Vec<u8>,
    /// Manual pages: name and text.
    man_pages: Vec<(String, String)>,
    completion: String,
    time: u64,
}

impl Package {
    fn of(program: &Path) -> Outcome<Self> {
        let bytes = std::fs::read(program).map_err(|e| format!("{}: {e}", program.display()))?;
        let time = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(time) => time,
            Err(_) => read(
                Command::new("git")
                    .args(["log", "-1", "--format=%ct"])
                    .current_dir(root()),
            )?,
        };
        Ok(Self {
            program: bytes,
            man_pages: man_pages(program)?,
            completion: read(Command::new(program).args(["completion", "bash"]))?,
            time: time
                .trim()
                .parse()
                .map_err(|e| format!("the time '{}': {e}", time.trim()))?,
        })
    }

    fn file_name(&self) -> String {
        format!("nilometer_{}_{}.deb", version(), architecture())
    }

    fn bytes(&self) -> Outcome<Vec<u8>> {
        let files = self.files()?;
        let installed: usize = files.iter().map(|(_, bytes, _)| bytes.len()).sum();
        let control = self.control(installed);
        let (control, ending) = compressed(tar(&tree(control), self.time)?);
        let (data, _) = compressed(tar(&tree(files), self.time)?);
        let members = [
            ("debian-binary", b"2.0\n".to_vec()),
            (&*format!("control.tar{ending}"), control),
            (&*format!("data.tar{ending}"), data),
        ];
        Ok(ar(&members, self.time))
    }

    /// Files of the package: path, bytes, whether it may be run.
    fn files(&self) -> Outcome<Vec<(String, Vec<u8>, bool)>> {
        let text = |name: &str| {
            let path = root().join(name);
            std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))
        };
        // The head of the unit says how to install it by hand.
        let unit = text("packaging/nilometer.service")?.replace(UNIT_PROGRAM, PROGRAM);
        let unit = unit
            .find("[Unit]")
            .and_then(|at| unit.get(at..))
            .ok_or("packaging/nilometer.service has no section [Unit]")?;
        let file = |path: &str, text: &str| (path.to_owned(), text.as_bytes().to_vec(), false);
        let pages = self.man_pages.iter();
        let mut files: Vec<_> = pages
            .map(|(name, text)| file(&format!("/usr/share/man/man1/{name}"), text))
            .collect();
        files.extend([
            (PROGRAM.to_owned(), self.program.clone(), true),
            file("/usr/lib/systemd/system/nilometer.service", unit),
            file(CONFIGURATION, &text("packaging/nilometer.yaml")?),
            file(
                "/usr/share/bash-completion/completions/nilometer",
                &self.completion,
            ),
            file("/usr/share/doc/nilometer/copyright", &text("LICENSE")?),
        ]);
        Ok(files)
    }

    /// Files about the package.
    fn control(&self, installed_bytes: usize) -> Vec<(String, Vec<u8>, bool)> {
        let needs = match newest_glibc(&self.program) {
            Some(minor) => format!("libc6 (>= 2.{minor}), libgcc-s1"),
            None => "libc6, libgcc-s1".to_owned(),
        };
        let control = format!(
            "Package: nilometer\nVersion: {}\nArchitecture: {}\nMaintainer: Nilometer <nilometer@localhost>\n\
             Installed-Size: {}\nDepends: {needs}\nSection: database\nPriority: optional\n\
             Description: time-series document database\n \
             Nilometer keeps measurements and documents, and speaks MongoDB's wire protocol.\n",
            version(),
            architecture(),
            installed_bytes.div_ceil(1024),
        );
        let file = |name: &str, text: &str, is_program| {
            (format!("/{name}"), text.as_bytes().to_vec(), is_program)
        };
        vec![
            file("control", &control, false),
            file("conffiles", &format!("{CONFIGURATION}\n"), false),
            file("postinst", POSTINST, true),
            file("prerm", PRERM, true),
            file("postrm", POSTRM, true),
        ]
    }
}

/// Returns the manual pages that a program writes.
fn man_pages(program: &Path) -> Outcome<Vec<(String, String)>> {
    let folder = target_folder().join("package").join("man");
    // Pages of an earlier program may have other names.
    drop(std::fs::remove_dir_all(&folder));
    let problem = |e: std::io::Error| format!("{}: {e}", folder.display());
    std::fs::create_dir_all(&folder).map_err(problem)?;
    read(Command::new(program).arg("man").arg(&folder))?;
    let mut pages = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(problem)? {
        let entry = entry.map_err(problem)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        pages.push((
            name,
            std::fs::read_to_string(entry.path()).map_err(problem)?,
        ));
    }
    pages.sort();
    Ok(pages)
}

const POSTINST: &str = "#!/bin/sh
set -e
if [ \"$1\" = configure ] && [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    # After an upgrade a running service goes on with the new program.
    if [ -n \"$2\" ]; then systemctl try-restart nilometer.service; fi
fi
";

const PRERM: &str = "#!/bin/sh
set -e
if [ \"$1\" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --now nilometer.service
fi
";

/// The data stays, even after a purge: only its owner deletes it.
const POSTRM: &str = "#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
if [ \"$1\" = purge ] && [ -d /var/lib/private/nilometer ]; then
    echo 'The data is still in /var/lib/private/nilometer.'
fi
";

fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Returns Debian's name of this machine's architecture.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "i386",
        "arm" => "armhf",
        "riscv64" => "riscv64",
        other => other,
    }
}

/// Returns the minor version of the newest glibc 2 whose symbols a program names.
fn newest_glibc(program: &[u8]) -> Option<u32> {
    const NAME: &[u8] = b"GLIBC_2.";
    let mut newest = None;
    for (at, window) in program.windows(NAME.len()).enumerate() {
        if window != NAME {
            continue;
        }
        let digits = program.get(at + NAME.len()..)?;
        let digits = digits.iter().take(3).take_while(|b| b.is_ascii_digit());
        let minor = digits.fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'));
        newest = newest.max(Some(minor));
    }
    newest
}

/// Returns the entries of files with the folders above them, each folder in front of what it contains.
fn tree(files: Vec<(String, Vec<u8>, bool)>) -> Vec<(String, Entry)> {
    let mut entries = std::collections::BTreeMap::new();
    for (path, bytes, is_program) in files {
        for (at, _) in path.match_indices('/') {
            entries.insert(format!(".{}/", &path[..at]), Entry::Folder);
        }
        entries.insert(format!(".{path}"), Entry::File { bytes, is_program });
    }
    entries.into_iter().collect()
}

/// Returns bytes compressed by `gzip` and the ending of their name; as they are, and no ending, if there is none.
fn compressed(bytes: Vec<u8>) -> (Vec<u8>, &'static str) {
    match gzip(&bytes) {
        Some(smaller) => (smaller, ".gz"),
        None => (bytes, ""),
    }
}

fn gzip(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut child = Command::new("gzip")
        .args(["-9", "-n", "-c"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let mut input = child.stdin.take()?;
    let output = std::thread::scope(|scope| {
        // Its output fills a pipe while its input is written.
        scope.spawn(move || std::io::Write::write_all(&mut input, bytes));
        child.wait_with_output().ok()
    })?;
    output.status.success().then_some(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package() -> Package {
        Package {
            program: b"\x7fELF GLIBC_2.4\0 GLIBC_2.34\0 GLIBC_2.17\0".to_vec(),
            man_pages: vec![("nilometer.1".to_owned(), ".TH nilometer 1\n".to_owned())],
            completion: "complete nilometer\n".to_owned(),
            time: 1_700_000_000,
        }
    }

    #[test]
    fn the_control_file_names_what_the_program_needs() {
        let control = package().control(2049);
        let text = String::from_utf8(control[0].1.clone()).unwrap();
        assert!(
            text.contains("Depends: libc6 (>= 2.34), libgcc-s1\n"),
            "{text}"
        );
        assert!(text.contains("Installed-Size: 3\n"), "{text}");
        let control = package().bytes().unwrap();
        assert_eq!(control, package().bytes().unwrap());
    }

    /// Unpacks with dpkg where it is installed.
    #[test]
    fn dpkg_reads_the_package() {
        let folder = std::env::temp_dir().join(format!("nilometer-package-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("nilometer.deb");
        std::fs::write(&file, package().bytes().unwrap()).unwrap();
        let dpkg = |arguments: &[&str]| read(Command::new("dpkg-deb").args(arguments));
        let file = file.to_str().unwrap();
        if dpkg(&["--version"]).is_err() {
            println!("skipped: there is no dpkg-deb");
            return;
        }
        assert_eq!(dpkg(&["-f", file, "Package"]).unwrap(), "nilometer\n");
        let tree = folder.join("tree");
        dpkg(&["-x", file, tree.to_str().unwrap()]).unwrap();
        let unit = tree.join("usr/lib/systemd/system/nilometer.service");
        let unit = std::fs::read_to_string(unit).unwrap();
        assert!(
            unit.starts_with("[Unit]\n") && !unit.contains("/usr/local"),
            "{unit}"
        );
        assert!(
            unit.contains("ExecStart=/usr/bin/nilometer serve"),
            "{unit}"
        );
        let program = std::fs::read(tree.join("usr/bin/nilometer")).unwrap();
        assert_eq!(program, package().program);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
