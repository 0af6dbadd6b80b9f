//! A minimal client that can saturate a server: OP_MSG over one socket, no pool, no monitor, no session. So the costs
//! of a driver are not measured.
//!
//! ```text
//! length i32 | request i32 | response to i32 | opcode i32 = 2013 | flags u32
//! kind u8 = 0 | command document
//! kind u8 = 1 | length i32 | "documents\0" | documents          (only with a sequence)
//! ```

use std::io::{IoSlice, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use nilometer_bson::{DocRef, Document};

use super::{Connection, Outcome};

const OP_MSG: i32 = 2013;
const HEADER: usize = 16;
/// Larger than any reply a server may send (48,000,000).
const REPLY_MAX: usize = 64 * 1024 * 1024;
/// A checksum follows the sections of the reply.
const CHECKSUM_PRESENT: u32 = 1;

/// One connection.
pub(crate) struct Wire {
    socket: TcpStream,
    request: i32,
}

impl Wire {
    pub(crate) fn connect(address: &str) -> Outcome<Self> {
        let socket = TcpStream::connect(address).map_err(|e| format!("{address}: {e}"))?;
        socket.set_nodelay(true).map_err(|e| e.to_string())?;
        Ok(Self { socket, request: 0 })
    }

    fn send(&mut self, command: &Document, documents: Option<&[u8]>) -> Outcome {
        self.request += 1;
        let mut head = Vec::with_capacity(256 + command.as_bytes().len());
        head.extend_from_slice(&[0; 4]);
        for word in [self.request, 0, OP_MSG, 0] {
            head.extend_from_slice(&word.to_le_bytes());
        }
        head.push(0);
        head.extend_from_slice(command.as_bytes());
        let tail = documents.unwrap_or_default();
        if documents.is_some() {
            const NAME: &[u8] = b"documents\0";
            head.push(1);
            let length = 4 + NAME.len() + tail.len();
            head.extend_from_slice(&to_i32(length)?.to_le_bytes());
            head.extend_from_slice(NAME);
        }
        let length = to_i32(head.len() + tail.len())?;
        head[..4].copy_from_slice(&length.to_le_bytes());
        write_both(&mut self.socket, &head, tail).map_err(|e| format!("sending: {e}"))
    }

    fn receive(&mut self) -> Outcome<Document> {
        let mut header = [0; HEADER];
        let read = |e: std::io::Error| format!("receiving: {e}");
        self.socket.read_exact(&mut header).map_err(read)?;
        let word = |at: usize| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&header[at..at + 4]);
            i32::from_le_bytes(bytes)
        };
        let length = usize::try_from(word(0)).unwrap_or(0);
        if !(HEADER..=REPLY_MAX).contains(&length) || word(12) != OP_MSG || word(8) != self.request
        {
            return Err(format!("not the reply that was expected: {header:?}"));
        }
        let mut body = vec![0; length - HEADER];
        self.socket.read_exact(&mut body).map_err(read)?;
        body_document(&body).ok_or_else(|| "a reply without a document".to_string())
    }
}

/// Returns the document of the first section of a reply, of kind 0.
fn body_document(body: &[u8]) -> Option<Document> {
    let flags = u32::from_le_bytes(body.get(..4)?.try_into().ok()?);
    debug_assert!(
        flags & !CHECKSUM_PRESENT == 0,
        "unexpected flags: {flags:#x}"
    );
    let (kind, rest) = body.get(4..)?.split_first()?;
    (*kind == 0)
        .then(|| DocRef::new(rest))?
        .map(DocRef::to_document)
}

fn to_i32(length: usize) -> Outcome<i32> {
    i32::try_from(length).map_err(|_| format!("a message of {length} bytes"))
}

/// Writes head and tail without copying the tail.
fn write_both(socket: &mut TcpStream, head: &[u8], tail: &[u8]) -> std::io::Result<()> {
    let mut sent = 0;
    while sent < head.len() {
        sent += socket.write_vectored(&[IoSlice::new(&head[sent..]), IoSlice::new(tail)])?;
    }
    socket.write_all(&tail[sent - head.len()..])
}

impl Connection for Wire {
    fn call(&mut self, command: &Document, documents: Option<Arc<Vec<u8>>>) -> Outcome<Document> {
        self.send(command, documents.as_ref().map(|d| d.as_slice()))?;
        self.receive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::doc;

    #[test]
    fn a_reply_is_its_first_section() {
        let reply = doc! { "ok": 1.0 };
        let mut body = vec![0, 0, 0, 0, 0];
        body.extend_from_slice(reply.as_bytes());
        assert_eq!(body_document(&body), Some(reply));
        body[4] = 1;
        assert_eq!(body_document(&body), None);
        assert_eq!(body_document(&body[..6]), None);
    }
}
