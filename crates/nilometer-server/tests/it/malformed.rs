//! Malformed messages: an error or a closed connection, never the end of the server.

use nilometer_bson::{Document, array, doc};

use crate::client::{COMPRESSED, MSG, body, code, is_ok, message, op_msg, op_query};
use crate::server::Server;

fn ping() -> Document {
    doc! {"ping": 1, "$db": "admin"}
}

/// Checks that the server serves other connections.
fn lives(server: &Server) {
    assert!(is_ok(&server.connect().run(&doc! {"ping": 1})));
}

#[test]
fn a_length_out_of_range_closes_the_connection() {
    let server = Server::start();
    for length in [i32::MIN, -1, 0, 15, 48_000_001, i32::MAX] {
        let mut client = server.connect();
        let mut bytes = op_msg(0, &[body(&ping())]);
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        client.send(&bytes);
        assert!(client.is_closed(), "{length}");
    }
    lives(&server);
}

#[test]
fn an_opcode_of_old_closes_the_connection() {
    let server = Server::start();
    for opcode in [0, 1, 1000, 2001, 2002, 2005, 2006, 2007, 2010, 2011, 9999] {
        let mut client = server.connect();
        client.send(&message(opcode, &[0; 32]));
        assert!(client.is_closed(), "{opcode}");
    }
    lives(&server);
}

#[test]
fn a_message_that_stops_halfway_harms_nobody() {
    let server = Server::start();
    let whole = op_msg(0, &[body(&ping())]);
    for end in 0..whole.len() {
        let mut client = server.connect();
        client.send(&whole[..end]);
        client.finish();
        assert!(client.is_closed(), "{end}");
    }
    // Forty-eight million bytes announced, none sent.
    let mut client = server.connect();
    let mut bytes = whole[..16].to_vec();
    bytes[..4].copy_from_slice(&48_000_000i32.to_le_bytes());
    client.send(&bytes);
    client.finish();
    assert!(client.is_closed());
    lives(&server);
}

#[test]
fn a_lying_document_is_refused_and_the_connection_goes_on() {
    let server = Server::start();
    let mut client = server.connect();
    for length in [i32::MIN, -1, 0, 4, 1_000_000, i32::MAX] {
        let mut section = body(&ping());
        section[1..5].copy_from_slice(&length.to_le_bytes());
        let found = code(&client.ask(&op_msg(0, &[section])));
        assert!([17, 22, 10_334].contains(&found), "{length}: {found}");
    }
    let mut unended = body(&ping());
    *unended.last_mut().unwrap() = 7;
    assert_eq!(code(&client.ask(&op_msg(0, &[unended]))), 22);
    assert!(is_ok(&client.run(&doc! {"ping": 1})));
}

#[test]
fn sections_that_make_no_command_are_refused() {
    let server = Server::start();
    let mut client = server.connect();
    for sections in [
        vec![],
        vec![body(&ping()), body(&ping())],
        vec![vec![7, 1, 2, 3]],
        vec![body(&ping()), vec![1, 200, 0, 0, 0, b'd', 0]],
        vec![body(&ping()), vec![1, 0, 0, 0, 0x80]],
        vec![vec![1, 8, 0, 0, 0, b'd', 0, 9]],
    ] {
        let found = code(&client.ask(&op_msg(0, &sections)));
        assert!([17, 22].contains(&found), "{sections:?}: {found}");
    }
    let unknown_flag = op_msg(4, &[body(&ping())]);
    assert_eq!(code(&client.ask(&unknown_flag)), 17);
    assert_eq!(code(&client.ask(&message(MSG, &[0, 0]))), 17);
    assert!(is_ok(&client.run(&doc! {"ping": 1})));
}

#[test]
fn a_command_larger_than_a_document_may_be_is_refused() {
    let server = Server::start();
    let mut client = server.connect();
    let large = doc! {"ping": 1, "comment": "x".repeat(17 * 1024 * 1024), "$db": "admin"};
    assert_eq!(code(&client.ask(&op_msg(0, &[body(&large)]))), 10_334);
    let fits = doc! {"ping": 1, "comment": "x".repeat(16 * 1024 * 1024), "$db": "admin"};
    assert!(is_ok(&client.ask(&op_msg(0, &[body(&fits)]))));
}

#[test]
fn compressed_messages_that_lie_close_the_connection() {
    let server = Server::start();
    let plain = &op_msg(0, &[body(&ping())])[16..];
    let good = zstd::bulk::compress(plain, 3).unwrap();
    let wrap = |opcode: i32, length: i32, compressor: u8, packed: &[u8]| {
        let front = [opcode.to_le_bytes(), length.to_le_bytes()].concat();
        message(
            COMPRESSED,
            &[front.as_slice(), &[compressor], packed].concat(),
        )
    };
    let length = i32::try_from(plain.len()).unwrap();
    for bytes in [
        wrap(MSG, length + 1, 3, &good),
        wrap(MSG, length - 1, 3, &good),
        wrap(MSG, -1, 3, &good),
        wrap(MSG, i32::MAX, 3, &good),
        wrap(MSG, length, 1, &good),
        wrap(MSG, length, 2, &good),
        wrap(MSG, length, 9, &good),
        wrap(MSG, length, 3, &good[..good.len() / 2]),
        wrap(COMPRESSED, length, 3, &good),
        wrap(2002, length, 3, &good),
        message(COMPRESSED, &[1, 2, 3]),
    ] {
        let mut client = server.connect();
        client.send(&bytes);
        assert!(client.is_closed(), "{bytes:?}");
    }
    lives(&server);
}

/// Returns a document nested `depth` times.
fn nested(depth: usize) -> Document {
    (0..depth).fold(doc! {"end": 1}, |inner, _| doc! {"a": inner})
}

#[test]
fn nesting_beyond_200_is_refused() {
    let server = Server::start();
    let mut client = server.connect();
    let ask = |client: &mut crate::client::Client, depth| {
        let deep = doc! {"ping": 1, "comment": nested(depth), "$db": "admin"};
        client.ask(&op_msg(0, &[body(&deep)]))
    };
    // The command and the innermost document count too.
    assert!(is_ok(&ask(&mut client, 198)));
    for depth in [199, 200, 10_000] {
        assert_eq!(code(&ask(&mut client, depth)), 15, "{depth}");
    }
    assert!(is_ok(&client.run(&doc! {"ping": 1})));
}

#[test]
fn a_document_that_is_wrong_deep_inside_is_refused() {
    let server = Server::start();
    let mut client = server.connect();
    let good = doc! {"ping": 1, "x": doc! {"y": "text", "z": true}, "$db": "admin"};
    let bytes = good.as_bytes();
    let find = |text: &[u8]| bytes.windows(text.len()).position(|w| w == text).unwrap();
    for (at, byte) in [
        (find(b"text"), 0xFF),
        (find(b"\x02y\0"), 0x77),
        (find(b"\x08z\0") + 3, 2),
        (find(b"\x02y\0") + 3, 0x7F),
    ] {
        let mut section = body(&good);
        section[at + 1] = byte;
        assert_eq!(code(&client.ask(&op_msg(0, &[section]))), 22, "{at}");
    }
    // Valid, but `ping` has no such option.
    assert_eq!(code(&client.ask(&op_msg(0, &[body(&good)]))), 40_415);
}

/// A seeded generator, so that a failure can be repeated.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn noise_harms_nobody() {
    let server = Server::start();
    let sound = [
        op_msg(
            0,
            &[body(&doc! {"ping": 1, "x": array![1, "b"], "$db": "admin"})],
        ),
        op_query("admin.$cmd", &doc! {"isMaster": 1}),
    ];
    for seed in 1..=200u64 {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut client = server.connect();
        let mut bytes = if seed % 4 == 0 {
            (0..100).map(|_| random(&mut state) as u8).collect()
        } else {
            sound[usize::try_from(seed % 2).unwrap()].clone()
        };
        for _ in 0..4 {
            let at = usize::try_from(random(&mut state)).unwrap() % bytes.len();
            bytes[at] = random(&mut state) as u8;
        }
        client.try_send(&bytes);
        client.finish();
    }
    lives(&server);
}
