//! TLS: modes, versions, client certificates, rotation.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nilometer_bson::{Document, DocumentBuilder, array, doc};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair,
};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use crate::client::{Client, body, code, is_ok, op_msg};
use crate::http::{exchange, free_port};
use crate::server::{Directory, Server};

/// A certificate authority of one test.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, "authority");
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("an authority"))
    }

    /// Issues a certificate and its key for `localhost`, or for a client named `name`.
    fn issue(&self, name: &str) -> (Certificate, KeyPair) {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("parameters");
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CountryName, "EG");
        params
            .distinguished_name
            .push(DnType::OrganizationName, "Nile");
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        (certificate, key)
    }

    /// Writes a certificate and its key into one file.
    fn write(&self, path: &Path, name: &str) {
        let (certificate, key) = self.issue(name);
        let text = format!("{}{}", certificate.pem(), key.serialize_pem());
        std::fs::write(path, text).expect("a file");
    }
}

pub(crate) type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// Connects with a certificate, if one is given. `None` if the server refuses.
fn connect(
    server: &Server,
    authority: &Authority,
    identity: Option<&(Certificate, KeyPair)>,
    version: &'static rustls::SupportedProtocolVersion,
) -> Option<TlsStream> {
    let mut stream = dial(server.port, authority, identity, version);
    // With TLS 1.3 only the answer shows the client that it was accepted.
    run(&mut stream, "admin", &doc! {"hello": 1}).map(|_| stream)
}

/// Connects to a port without sending anything.
fn dial(
    port: u16,
    authority: &Authority,
    identity: Option<&(Certificate, KeyPair)>,
    version: &'static rustls::SupportedProtocolVersion,
) -> TlsStream {
    let mut roots = RootCertStore::empty();
    roots.add(authority.0.der().clone()).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .expect("a version")
        .with_root_certificates(roots);
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = vec![CertificateDer::from(certificate.der().to_vec())];
            let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).expect("a key");
            builder
                .with_client_auth_cert(chain, key)
                .expect("an identity")
        }
    };
    let name = ServerName::try_from("localhost").expect("a name");
    let connection = ClientConnection::new(Arc::new(config), name).expect("a connection");
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    StreamOwned::new(connection, stream)
}

/// Connects without a certificate, with TLS 1.3.
pub(crate) fn connect_newest(server: &Server, authority: &Authority) -> TlsStream {
    connect(server, authority, None, &rustls::version::TLS13).expect("a connection")
}

fn run(stream: &mut TlsStream, db: &str, command: &Document) -> Option<Document> {
    let mut with_database = DocumentBuilder::new();
    for element in command.iter() {
        with_database.append_element(element);
    }
    with_database.append("$db", db);
    let message = op_msg(0, &[body(&with_database.finish())]);
    stream.write_all(&message).ok()?;
    stream.flush().ok()?;
    let mut header = [0; 16];
    stream.read_exact(&mut header).ok()?;
    let length = i32::from_le_bytes(header[..4].try_into().expect("four bytes"));
    let mut rest = vec![0; usize::try_from(length).ok()? - 16];
    stream.read_exact(&mut rest).ok()?;
    Document::from_bytes(rest.get(5..)?.to_vec())
}

/// Starts a server with TLS. Returns it with its directory.
pub(crate) fn start(authority: &Authority, mode: &str, more: &[&str]) -> (Server, Directory) {
    let directory = Directory::new();
    let file = directory.0.join("server.pem");
    authority.write(&file, "server");
    std::fs::write(directory.0.join("ca.pem"), authority.0.pem()).expect("a file");
    let file = file.to_str().expect("a path");
    let mut arguments = vec!["--tlsMode", mode, "--tlsCertificateKeyFile", file];
    arguments.extend_from_slice(more);
    (Server::start_with(&arguments), directory)
}

const TLS12: &rustls::SupportedProtocolVersion = &rustls::version::TLS12;
const TLS13: &rustls::SupportedProtocolVersion = &rustls::version::TLS13;

#[test]
fn modes_decide_who_is_served() {
    let authority = Authority::new();
    for mode in ["preferTLS", "requireTLS"] {
        let (server, _directory) = start(&authority, mode, &[]);
        for version in [TLS12, TLS13] {
            let mut stream = connect(&server, &authority, None, version).expect("a connection");
            let big = doc! {"insert": "c", "documents": array![doc! {"x": "y".repeat(3_000_000)}]};
            assert!(is_ok(&run(&mut stream, "a", &big).expect("an answer")));
            let found = run(&mut stream, "a", &doc! {"find": "c"}).expect("an answer");
            assert!(found.as_bytes().len() > 3_000_000);
            assert!(is_ok(
                &run(&mut stream, "a", &doc! {"drop": "c"}).expect("an answer")
            ));
        }
        let mut plain = server.connect();
        let answer = plain.ask_or_lose(&op_msg(0, &[body(&doc! {"ping": 1, "$db": "admin"})]));
        assert_eq!(answer.is_some(), mode == "preferTLS");
        // A message whose length begins like a TLS record is a message.
        if mode == "preferTLS" {
            let mut plain: Client = server.connect();
            let padding = "x".repeat(
                0x0316 - op_msg(0, &[body(&doc! {"ping": 1, "$db": "admin", "comment": ""})]).len(),
            );
            let message = op_msg(
                0,
                &[body(&doc! {"ping": 1, "$db": "admin", "comment": padding})],
            );
            assert_eq!(&message[..2], &[0x16, 0x03]);
            assert!(is_ok(&plain.ask(&message)));
        }
    }
}

#[test]
fn versions_can_be_switched_off() {
    let authority = Authority::new();
    let (server, _directory) = start(
        &authority,
        "requireTLS",
        &["--tlsDisabledProtocols", "TLS1_2"],
    );
    assert!(connect(&server, &authority, None, TLS12).is_none());
    assert!(connect(&server, &authority, None, TLS13).is_some());
}

#[test]
fn a_certificate_logs_its_subject_in() {
    let authority = Authority::new();
    let directory = Directory::new();
    let ca = directory.0.join("ca.pem");
    std::fs::write(&ca, authority.0.pem()).expect("a file");
    let ca = ca.to_str().expect("a path");
    let (server, _directory) = start(&authority, "requireTLS", &["--auth", "--tlsCAFile", ca]);
    assert!(
        connect(&server, &authority, None, TLS13).is_none(),
        "none shown"
    );
    let stranger = Authority::new().issue("gauge");
    assert!(connect(&server, &authority, Some(&stranger), TLS13).is_none());
    let identity = authority.issue("gauge");
    for version in [TLS12, TLS13] {
        let mut stream = connect(&server, &authority, Some(&identity), version).expect("served");
        let login = doc! {"authenticate": 1, "mechanism": "MONGODB-X509"};
        if version == TLS12 {
            let refused = run(&mut stream, "$external", &login).expect("an answer");
            assert_eq!(code(&refused), 18);
            let admin = doc! {"createUser": "a", "pwd": "x", "roles": array!["root"]};
            assert!(is_ok(
                &run(&mut stream, "admin", &admin).expect("an answer")
            ));
            continue;
        }
        assert_eq!(
            code(&run(&mut stream, "$external", &login).expect("an answer")),
            18
        );
    }
}

#[test]
fn a_user_is_known_by_the_certificate() {
    let authority = Authority::new();
    let directory = Directory::new();
    let ca = directory.0.join("ca.pem");
    std::fs::write(&ca, authority.0.pem()).expect("a file");
    let ca = ca.to_str().expect("a path");
    // Without access control, so that the test can create any user.
    let (server, _directory) = start(&authority, "requireTLS", &["--tlsCAFile", ca]);
    let identity = authority.issue("gauge");
    let mut stream = connect(&server, &authority, Some(&identity), TLS13).expect("served");
    let subject = "CN=gauge,O=Nile,C=EG";
    let create = doc! {"createUser": subject, "roles": array![
        doc! {"role": "read", "db": "a"},
    ]};
    let reply = run(&mut stream, "$external", &create).expect("an answer");
    assert!(is_ok(&reply), "{reply:?}");
    let other = doc! {"authenticate": 1, "mechanism": "MONGODB-X509", "user": "CN=other"};
    assert_eq!(
        code(&run(&mut stream, "$external", &other).expect("an answer")),
        18
    );
    let login = doc! {"authenticate": 1, "mechanism": "MONGODB-X509"};
    let reply = run(&mut stream, "$external", &login).expect("an answer");
    assert_eq!(reply.get("user").as_str(), Some(subject), "{reply:?}");
}

#[test]
fn certificates_are_rotated_while_connections_go_on() {
    let authority = Authority::new();
    let (server, directory) = start(&authority, "requireTLS", &[]);
    let mut open = connect(&server, &authority, None, TLS13).expect("served");
    let other = Authority::new();
    let file = directory.0.join("server.pem");
    std::fs::write(&file, "nothing").expect("a file");
    let rotate = doc! {"rotateCertificates": 1};
    assert_eq!(
        code(&run(&mut open, "admin", &rotate).expect("an answer")),
        140
    );
    assert!(
        connect(&server, &authority, None, TLS13).is_some(),
        "still the old"
    );
    other.write(&file, "server");
    assert!(is_ok(&run(&mut open, "admin", &rotate).expect("an answer")));
    assert!(is_ok(
        &run(&mut open, "admin", &doc! {"ping": 1}).expect("an answer")
    ));
    assert!(connect(&server, &authority, None, TLS13).is_none());
    assert!(connect(&server, &other, None, TLS13).is_some());
}

#[test]
fn the_programs_own_commands_speak_it() {
    let authority = Authority::new();
    let directory = Directory::new();
    let file = |name: &str| directory.0.join(name).display().to_string();
    std::fs::write(file("ca.pem"), authority.0.pem()).expect("a file");
    std::fs::write(file("other.pem"), Authority::new().0.pem()).expect("a file");
    authority.write(Path::new(&file("gauge.pem")), "gauge");
    let (any, _any_directory) = start(&authority, "requireTLS", &[]);
    let ca = file("ca.pem");
    let (strict, _strict_directory) = start(&authority, "requireTLS", &["--tlsCAFile", &ca]);
    let identity = authority.issue("admin");
    let mut admin = connect(&strict, &authority, Some(&identity), TLS13).expect("served");
    let create = doc! {"createUser": "CN=gauge,O=Nile,C=EG", "roles": array![]};
    assert!(is_ok(
        &run(&mut admin, "$external", &create).expect("an answer")
    ));
    let trusted = format!("tlsCAFile={ca}");
    let shown = format!("{trusted}&tlsCertificateKeyFile={}", file("gauge.pem"));
    let export = ["export", "--db", "db", "--collection", "c"];
    for (server, host, options, expected) in [
        (&any, "localhost", trusted.clone(), None),
        (&any, "localhost", "tlsInsecure=true".into(), None),
        (
            &any,
            "127.0.0.1",
            "tlsAllowInvalidCertificates=true".into(),
            None,
        ),
        (
            &any,
            "127.0.0.1",
            format!("{trusted}&tlsAllowInvalidHostnames=true"),
            None,
        ),
        (&strict, "localhost", shown.clone(), None),
        (
            &strict,
            "localhost",
            format!("{shown}&authMechanism=MONGODB-X509"),
            None,
        ),
        (
            &any,
            "localhost",
            "tls=false".into(),
            Some("does it require tls=true"),
        ),
        (
            &any,
            "localhost",
            "tls=true".into(),
            Some("no TLS with localhost"),
        ),
        (
            &any,
            "127.0.0.1",
            trusted.clone(),
            Some("not valid for name"),
        ),
        (
            &any,
            "localhost",
            format!(
                "tlsCAFile={}&tlsAllowInvalidHostnames=true",
                file("other.pem")
            ),
            Some("invalid peer certificate"),
        ),
        (
            &any,
            "localhost",
            "tlsCAFile=/nowhere".into(),
            Some("cannot read /nowhere"),
        ),
        (&strict, "localhost", trusted, Some("CertificateRequired")),
        (
            &any,
            "localhost",
            format!("tlsCAFile={ca}&authMechanism=MONGODB-X509"),
            Some("cannot log in as the certificate's subject"),
        ),
    ] {
        let uri = format!("mongodb://{host}:{}/?{options}", server.port);
        let (code, told) = crate::transfer::run_at(&uri, &export, &[], "");
        assert_eq!(code == Some(0), expected.is_none(), "{uri}: {told}");
        assert!(told.contains(expected.unwrap_or_default()), "{uri}: {told}");
    }
}

#[test]
fn the_http_port_speaks_tls_too() {
    let authority = Authority::new();
    for (mode, in_the_open) in [("preferTLS", "200"), ("requireTLS", "403")] {
        let port = free_port();
        let http = ["--httpPort", &port.to_string(), "--webPage"];
        let (_server, _directory) = start(&authority, mode, &http);
        for version in [TLS12, TLS13] {
            for path in ["/", "/metrics", "/healthz"] {
                let mut stream = dial(port, &authority, None, version);
                let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
                stream.write_all(request.as_bytes()).expect("sent");
                let mut answer = Vec::new();
                // The connection ends without a TLS notification.
                drop(stream.read_to_end(&mut answer));
                let answer = String::from_utf8(answer).expect("text");
                assert!(answer.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
            }
        }
        let open = |path: &str| {
            let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
            let answer = exchange(port, request.as_bytes());
            answer.get(9..12).expect("a status").to_owned()
        };
        assert_eq!(open("/healthz"), "200");
        assert_eq!(open("/readyz"), "200");
        assert_eq!(open("/"), in_the_open);
        assert_eq!(open("/metrics"), in_the_open);
    }
}

#[test]
fn hello_waits_over_tls() {
    let authority = Authority::new();
    let (server, _directory) = start(&authority, "requireTLS", &[]);
    for version in [TLS12, TLS13] {
        let mut stream = connect(&server, &authority, None, version).expect("a connection");
        let reply = run(&mut stream, "admin", &doc! {"hello": 1}).expect("a reply");
        let known = reply.get("topologyVersion").to_value();
        let began = Instant::now();
        let waits = doc! {"hello": 1, "topologyVersion": known.clone(), "maxAwaitTimeMS": 200};
        assert!(is_ok(&run(&mut stream, "admin", &waits).expect("a reply")));
        assert!(began.elapsed() >= Duration::from_millis(200));
        assert!(is_ok(
            &run(&mut stream, "admin", &doc! {"ping": 1}).expect("a reply")
        ));
        // The end of the client ends the wait.
        let waits = doc! {"hello": 1, "topologyVersion": known, "maxAwaitTimeMS": 3_600_000, "$db": "admin"};
        stream
            .write_all(&op_msg(0, &[body(&waits)]))
            .expect("bytes are taken");
        stream.flush().expect("bytes are taken");
        let mut other = connect(&server, &authority, None, version).expect("a connection");
        let mut waiting = || {
            let status = run(&mut other, "admin", &doc! {"serverStatus": 1}).expect("a reply");
            let connections = status.get("connections").as_document().expect("figures");
            connections.get("awaitingTopologyChanges").as_exact_i64()
        };
        let end = Instant::now() + Duration::from_secs(20);
        while waiting() != Some(1) {
            assert!(Instant::now() < end);
        }
        drop(stream);
        while waiting() != Some(0) {
            assert!(Instant::now() < end);
        }
    }
}
