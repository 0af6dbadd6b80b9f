//! The two archive formats of a `.deb`: `ar` outside, `tar` (ustar) inside. Both are headers of text in front of bytes; owners
//! are root, times are given, so that the same files give the same archive.

use crate::process::Outcome;

/// Bytes of a header and of a block of a tar file.
const BLOCK: usize = 512;

/// What lies at a path.
pub(crate) enum Entry {
    /// A folder.
    Folder,
    /// A file with its bytes, and whether it may be run.
    File { bytes: Vec<u8>, is_program: bool },
}

impl Entry {
    fn mode(&self) -> u32 {
        match self {
            Self::Folder
            | Self::File {
                is_program: true, ..
            } => 0o755,
            Self::File { .. } => 0o644,
        }
    }
}

/// Returns a tar file. `time` is the time of each entry in seconds since 1970. Fails if a path is longer than a header holds.
pub(crate) fn tar(entries: &[(String, Entry)], time: u64) -> Outcome<Vec<u8>> {
    let mut out = Vec::new();
    for (path, entry) in entries {
        let (kind, bytes): (u8, &[u8]) = match entry {
            Entry::Folder => (b'5', &[]),
            Entry::File { bytes, .. } => (b'0', bytes),
        };
        let header = tar_header(path, entry.mode(), bytes.len(), time, kind)?;
        out.extend_from_slice(&header);
        out.extend_from_slice(bytes);
        out.resize(out.len().next_multiple_of(BLOCK), 0);
    }
    // Two empty blocks end the file.
    out.resize(out.len() + 2 * BLOCK, 0);
    Ok(out)
}

fn tar_header(path: &str, mode: u32, size: usize, time: u64, kind: u8) -> Outcome<[u8; BLOCK]> {
    let mut header = [0u8; BLOCK];
    let mut put = |at: usize, length: usize, text: &str| {
        let field = header
            .get_mut(at..at + length)
            .and_then(|field| field.get_mut(..text.len()));
        let field = field.ok_or_else(|| format!("{path}: '{text}' is too long for a tar file"))?;
        field.copy_from_slice(text.as_bytes());
        Outcome::Ok(())
    };
    put(0, 100, path)?;
    put(100, 8, &format!("{mode:07o}"))?;
    put(108, 8, "0000000")?;
    put(116, 8, "0000000")?;
    put(124, 12, &format!("{size:011o}"))?;
    put(136, 12, &format!("{time:011o}"))?;
    // The sum is computed as if its field were blank.
    put(148, 8, "        ")?;
    put(257, 8, "ustar\u{0}00")?;
    put(265, 32, "root")?;
    put(297, 32, "root")?;
    header[156] = kind;
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\u{0} ").as_bytes());
    Ok(header)
}

/// Returns an `ar` file of members in their order.
pub(crate) fn ar(members: &[(&str, Vec<u8>)], time: u64) -> Vec<u8> {
    let mut out = b"!<arch>\n".to_vec();
    for (name, bytes) in members {
        let size = bytes.len();
        out.extend_from_slice(
            format!(
                "{name:<16}{time:<12}{:<6}{:<6}{:<8}{size:<10}`\n",
                0, 0, "100644"
            )
            .as_bytes(),
        );
        out.extend_from_slice(bytes);
        if size % 2 == 1 {
            out.push(b'\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tar_header_has_its_fields_and_their_sum() {
        let file = Entry::File {
            bytes: b"abc".to_vec(),
            is_program: false,
        };
        let entries = [
            ("./d/".to_owned(), Entry::Folder),
            ("./d/f".to_owned(), file),
        ];
        let out = tar(&entries, 7).unwrap();
        assert_eq!(out.len(), 5 * BLOCK);
        let header = &out[BLOCK..2 * BLOCK];
        assert!(header.starts_with(b"./d/f\0"));
        assert_eq!(&header[100..108], b"0000644\0");
        assert_eq!(&header[124..148], b"00000000003\x0000000000007\0");
        assert_eq!((out[156], header[156]), (b'5', b'0'));
        let sum: u32 = (0..BLOCK)
            .map(|at| match (148..156).contains(&at) {
                true => u32::from(b' '),
                false => u32::from(header[at]),
            })
            .sum();
        assert_eq!(&header[148..156], format!("{sum:06o}\0 ").as_bytes());
        assert_eq!(&out[2 * BLOCK..2 * BLOCK + 4], b"abc\0");
        assert!(tar(&[("x".repeat(101), Entry::Folder)], 0).is_err());
    }

    #[test]
    fn members_of_an_ar_file_begin_at_even_places() {
        let out = ar(&[("a", b"xyz".to_vec()), ("b", Vec::new())], 7);
        let expected = "!<arch>\n\
            a               7           0     0     100644  3         `\nxyz\n\
            b               7           0     0     100644  0         `\n";
        assert_eq!(out, expected.as_bytes());
    }
}
