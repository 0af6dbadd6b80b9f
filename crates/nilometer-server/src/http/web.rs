//! The web page: its files and its API.
//!
//! | path | |
//! |---|---|
//! | `GET /`, `/page.js`, … | the files of [`files`], embedded in the program |
//! | `POST /api/session` | the logged-in user, and facts about the server |
//! | `POST /api/login` | `{user, password, db}`: a login, see [`super::login`] |
//! | `POST /api/logout` | a logout |
//! | `POST /api/command` | `{db, command}` in extended JSON: one of the commands of [`command`] |
//! | `POST /api/language` | the names of stages and operators, for completion, see [`language`] |
//! | `GET`, `POST /api/query` | the result of a query, see [`super::query`] |
//!
//! Commands take the same path as those of drivers, with the same users and checks. This module handles the dangers
//! that browsers add:
//!
//! - **Other pages in the same browser.** All changes are POST requests with JSON as content type, which a foreign page
//!   can only send after a preflight request, and preflight requests are refused. `Origin` and `Sec-Fetch-Site`, if
//!   present, must name this page.
//! - **DNS rebinding** (a foreign name that resolves to this machine). `Host` must be an address, `localhost`, or a
//!   configured name.
//! - **Plaintext passwords.** From another machine they are accepted with TLS only.
//! - **The first user.** A client on the same machine may create it over the database's port, never over this port: a
//!   browser or proxy on this machine may act for anyone.
//!
//! `docs/decisions/0013-web-page.md` gives the reasons for this design.

mod command;
mod files;
mod language;
mod sessions;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use nilometer::session::ClientMetadata;
use nilometer::{ClientSession, Database};
use nilometer_bson::extjson::{parse_document, to_relaxed};
use nilometer_bson::{DocRef, Document, ValueRef, doc};

use super::login;
use super::message::{Connection, HttpResponse, RequestHead};
use super::query::QueryApi;
use super::slots::Slots;
pub(super) use command::WRITING_STAGES;
use sessions::Sessions;

/// Bytes of a command or a login in JSON.
const BODY_BYTES_MAX: usize = 256 * 1024;

/// Concurrent commands. Leaves connections of the port for other requests.
const COMMANDS_MAX: usize = 12;

/// Concurrent logins: each costs thousands of hashes, and may have to wait.
const LOGINS_MAX: usize = 4;

/// Time that a command or a login waits for a slot.
const TURN_TIME_MAX: Duration = Duration::from_secs(3);

/// The web page and its sessions.
pub(super) struct Web {
    /// Host names of the page, besides addresses and `localhost`.
    hosts: Vec<String>,
    sessions: Sessions,
    commands: Slots,
    logins: Slots,
    query: QueryApi,
}

/// A request and its origin.
struct WebRequest<'a> {
    database: &'a Database,
    client: ClientMetadata,
    /// Id of the request.
    id: i64,
    is_tls: bool,
    /// The token in the session cookie, if there is one.
    token: Option<&'a str>,
}

impl WebRequest<'_> {
    fn address(&self) -> Option<IpAddr> {
        let socket: SocketAddr = self.client.remote.parse().ok()?;
        Some(socket.ip().to_canonical())
    }

    /// Returns the cookie's name. It contains the port, because cookies do not distinguish ports.
    fn cookie_name(local: &str) -> String {
        let port = local.rsplit_once(':').map_or("", |(_, port)| port);
        format!("nilometer_{port}")
    }

    /// Returns a session without a user.
    fn stranger(&self) -> ClientSession {
        let client = ClientMetadata {
            document: Some(doc! {"application": doc! {"name": "Nilometer web page"}}),
            same_machine: false,
            ..self.client.clone()
        };
        ClientSession::new(self.id, client)
    }
}

impl Web {
    /// Returns a page with the host names `hosts`, besides addresses and `localhost`.
    pub(super) fn new(hosts: Vec<String>) -> Self {
        let hosts = hosts.iter().map(|host| host.to_ascii_lowercase());
        Self {
            hosts: hosts.collect(),
            sessions: Sessions::default(),
            commands: Slots::new(COMMANDS_MAX),
            logins: Slots::new(LOGINS_MAX),
            query: QueryApi::new(),
        }
    }

    /// Answers a request for the page or its API.
    pub(super) fn answer(
        &self,
        database: &Database,
        connection: &mut Connection,
        head: &RequestHead,
    ) -> HttpResponse {
        let host = head.field("host").unwrap_or_default();
        if !self.is_ours(host) {
            return protected(HttpResponse::text(
                "421 Misdirected Request",
                format!(
                    "The web page is not served under the name '{}'. Open it as localhost or by an address, \
                     or allow the name with --webHosts.\n",
                    host.escape_default()
                ),
            ));
        }
        let answer = match head.method.as_str() {
            _ if head.path == "/api/query" => {
                let answered = self.query(database, connection, head);
                answered.unwrap_or_else(|refused| refused)
            }
            "GET" | "HEAD" => files::find(&head.path),
            "POST" if head.path.starts_with("/api/") => {
                let answered = self.call(database, connection, head);
                answered.unwrap_or_else(|refused| refused)
            }
            _ => HttpResponse::text(
                "405 Method Not Allowed",
                "only GET, HEAD, and POST to /api\n",
            )
            .with("Allow", "GET, HEAD, POST"),
        };
        protected(answer)
    }

    /// True if `host`, with or without a port, is a name of this server. A name without brackets that is followed by
    /// anything but a port is not.
    fn is_ours(&self, host: &str) -> bool {
        let (name, after) = match host.strip_prefix('[') {
            Some(rest) => match rest.split_once(']') {
                Some((name, after)) if name.parse::<Ipv6Addr>().is_ok() => (name, after),
                _ => return false,
            },
            None => host.split_at(host.find(':').unwrap_or(host.len())),
        };
        // RFC 9110 allows a port without digits.
        let is_port = |port: &str| {
            let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
            port.is_empty() || is_number && port.parse::<u16>().is_ok()
        };
        if !(after.is_empty() || after.strip_prefix(':').is_some_and(is_port)) {
            return false;
        }
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        name.parse::<IpAddr>().is_ok()
            || name == "localhost"
            || name.ends_with(".localhost")
            || self.hosts.contains(&name)
    }

    /// Answers a query.
    fn query(
        &self,
        database: &Database,
        connection: &mut Connection,
        head: &RequestHead,
    ) -> Result<HttpResponse, HttpResponse> {
        // A query that a user types or follows has no page that could read the answer.
        let is_typed = head.method == "GET" && head.field("sec-fetch-site") == Some("none");
        if !is_typed {
            check_origin(head)?;
        }
        if head.method == "POST" {
            check_type(head)?;
        }
        let asker = asker(database, connection, head)?;
        Ok(self
            .query
            .answer(database, connection, head, || self.session(&asker)))
    }

    /// Answers a request for the API.
    fn call(
        &self,
        database: &Database,
        connection: &mut Connection,
        head: &RequestHead,
    ) -> Result<HttpResponse, HttpResponse> {
        check_origin(head)?;
        check_type(head)?;
        let body = connection.read_body(head, BODY_BYTES_MAX)?;
        let body = read(&body)?;
        let asker = asker(database, connection, head)?;
        match head.path.as_str() {
            "/api/session" => Ok(self.tell(&asker)),
            "/api/language" => match self.session(&asker) {
                Some(_) => Ok(ok(&language::names())),
                None => Err(log_in_first()),
            },
            "/api/login" => self.log_in(&asker, body.as_ref()),
            "/api/logout" => Ok(self.log_out(&asker)),
            "/api/command" => {
                connection.entry().begin_command();
                let answer = self.run(&asker, body.as_ref());
                connection.entry().end_command();
                answer
            }
            _ => Err(refuse(
                "404 Not Found",
                "There are /api/session, /api/login, /api/logout, /api/language, /api/command and /api/query.",
            )),
        }
    }

    /// Returns the session of a request: the logged-in one, or one without a user if logins are not required.
    fn session(&self, asker: &WebRequest<'_>) -> Option<ClientSession> {
        let known = self.known(asker);
        if known.is_none() && asker.database.services().access_control {
            return None;
        }
        let mut session = known.unwrap_or_else(|| asker.stranger());
        session.connection_id = asker.id;
        Some(session)
    }

    /// Returns the logged-in session, if its user still exists.
    fn known(&self, asker: &WebRequest<'_>) -> Option<ClientSession> {
        let address = asker.address()?;
        let mut session = self.sessions.find(asker.token?, address, Instant::now())?;
        if login::is_still_in(asker.database, &mut session) {
            return Some(session);
        }
        self.sessions.end(asker.token?);
        None
    }

    fn tell(&self, asker: &WebRequest<'_>) -> HttpResponse {
        let known = self.known(asker);
        let user = known.as_ref().and_then(|session| session.login.user());
        ok(&doc! {
            "needsLogin": asker.database.services().access_control,
            "takesPassword": may_send_password(asker),
            "user": user.map(|name| name.user.as_str()),
            "db": user.map(|name| name.db.as_str()),
            "version": crate::VERSION,
            "documentsMax": command::DOCUMENTS_MAX,
            "secondsMax": i64::try_from(command::TIME_MAX.as_secs()).unwrap_or(i64::MAX),
        })
    }

    fn log_in(
        &self,
        asker: &WebRequest<'_>,
        body: DocRef<'_>,
    ) -> Result<HttpResponse, HttpResponse> {
        if !may_send_password(asker) {
            return Err(refuse(
                "403 Forbidden",
                "Passwords are not accepted without TLS from another machine. Start the server with --tlsMode, or come \
                 through a tunnel: ssh -L.",
            ));
        }
        let text = |name: &str| {
            body.get(name)
                .as_str()
                .ok_or_else(|| refuse("400 Bad Request", &format!("'{name}' must be a text.")))
        };
        let (user, password) = (text("user")?, text("password")?);
        let db = match body.get("db") {
            ValueRef::Missing => "admin",
            _ => text("db")?,
        };
        let Some(_turn) = self.logins.take(TURN_TIME_MAX) else {
            return Err(busy());
        };
        let mut session = asker.stranger();
        login::log_in(asker.database, &mut session, db, user, password)
            .map_err(|reason| refuse("401 Unauthorized", &reason))?;
        let Some(address) = asker.address() else {
            return Err(refuse("400 Bad Request", "The connection is gone."));
        };
        // A new login ends the previous session.
        drop(asker.token.and_then(|token| self.sessions.end(token)));
        let token = self.sessions.begin(session, address, Instant::now());
        let token = token.map_err(|e| refuse("500 Internal Server Error", &e.message))?;
        let answer = ok(&doc! {"user": user, "db": db});
        Ok(answer.with("Set-Cookie", cookie(asker, &token, sessions::AGE_MAX)))
    }

    fn log_out(&self, asker: &WebRequest<'_>) -> HttpResponse {
        if let Some(mut session) = asker.token.and_then(|token| self.sessions.end(token)) {
            login::log_out(asker.database, &mut session);
        }
        ok(&doc! {}).with("Set-Cookie", cookie(asker, "", Duration::ZERO))
    }

    fn run(&self, asker: &WebRequest<'_>, body: DocRef<'_>) -> Result<HttpResponse, HttpResponse> {
        let Some(mut session) = self.session(asker) else {
            return Err(log_in_first());
        };
        let Some(db) = body.get("db").as_str() else {
            return Err(refuse("400 Bad Request", "'db' must be a text."));
        };
        let Some(given) = body.get("command").as_document() else {
            return Err(refuse("400 Bad Request", "'command' must be a document."));
        };
        let bounded = command::bounded(given, db);
        let bounded = bounded.map_err(|reason| refuse("403 Forbidden", &reason))?;
        let Some(_turn) = self.commands.take(TURN_TIME_MAX) else {
            return Err(busy());
        };
        let body = command::run(asker.database, &mut session, bounded);
        let body = body.map_err(|reason| refuse("422 Unprocessable Content", &reason))?;
        Ok(HttpResponse::json("200 OK", body))
    }
}

/// Returns a request and its origin.
fn asker<'a>(
    database: &'a Database,
    connection: &Connection,
    head: &'a RequestHead,
) -> Result<WebRequest<'a>, HttpResponse> {
    let Ok(client) = connection.client() else {
        return Err(refuse("400 Bad Request", "The connection is gone."));
    };
    let cookie = WebRequest::cookie_name(&client.local);
    Ok(WebRequest {
        database,
        client,
        id: connection.entry().id,
        is_tls: connection.is_tls(),
        token: head.field("cookie").and_then(|all| value_of(all, &cookie)),
    })
}

/// True if a password may be sent: with TLS, or within the machine.
fn may_send_password(asker: &WebRequest<'_>) -> bool {
    asker.is_tls || asker.client.same_machine
}

/// Fails if another page sends the request.
fn check_origin(head: &RequestHead) -> Result<(), HttpResponse> {
    let foreign = || {
        Err(refuse(
            "403 Forbidden",
            "The request comes from another page.",
        ))
    };
    match head.field("sec-fetch-site") {
        None | Some("same-origin") => {}
        Some(_) => return foreign(),
    }
    let Some(origin) = head.field("origin") else {
        // Not a browser: browsers send the origin of a POST.
        return Ok(());
    };
    // A proxy may use TLS although this port does not, so the scheme is not compared.
    let named = origin
        .strip_prefix("https://")
        .or_else(|| origin.strip_prefix("http://"));
    let host = head.field("host").unwrap_or_default();
    if named.is_some_and(|named| named.eq_ignore_ascii_case(host)) {
        Ok(())
    } else {
        foreign()
    }
}

/// Fails unless the content type is JSON, which a form of another page cannot send.
fn check_type(head: &RequestHead) -> Result<(), HttpResponse> {
    let kind = head.field("content-type").unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(refuse(
        "415 Unsupported Media Type",
        "The body must be JSON, and its Content-Type application/json.",
    ))
}

fn read(body: &[u8]) -> Result<Document, HttpResponse> {
    let text = std::str::from_utf8(body);
    let text = text.map_err(|_| refuse("400 Bad Request", "The body is not UTF-8."))?;
    parse_document(text).map_err(|problem| {
        refuse(
            "400 Bad Request",
            &format!("The body is not extended JSON: {problem}."),
        )
    })
}

/// Returns the value of a cookie.
fn value_of<'a>(cookies: &'a str, name: &str) -> Option<&'a str> {
    let mut each = cookies
        .split(';')
        .filter_map(|one| one.trim().split_once('='));
    each.find(|(known, _)| *known == name)
        .map(|(_, value)| value)
}

/// Returns the header that sets or removes the session cookie.
fn cookie(asker: &WebRequest<'_>, token: &str, age: Duration) -> String {
    let name = WebRequest::cookie_name(&asker.client.local);
    let secure = if asker.is_tls { "; Secure" } else { "" };
    let seconds = age.as_secs();
    format!("{name}={token}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}")
}

/// Adds the headers that restrict what browsers do with a response.
pub(super) fn protected(answer: HttpResponse) -> HttpResponse {
    answer
        .with("Content-Security-Policy", files::POLICY)
        .with("Cross-Origin-Opener-Policy", "same-origin")
        .with("Cross-Origin-Resource-Policy", "same-origin")
        .with("Referrer-Policy", "no-referrer")
        .with("X-Frame-Options", "DENY")
}

fn ok(document: &Document) -> HttpResponse {
    HttpResponse::json("200 OK", to_relaxed(document.as_ref()))
}

fn refuse(status: &'static str, reason: &str) -> HttpResponse {
    HttpResponse::json(status, to_relaxed(doc! {"error": reason}.as_ref()))
}

fn log_in_first() -> HttpResponse {
    refuse("401 Unauthorized", "Log in first.")
}

fn busy() -> HttpResponse {
    refuse(
        "503 Service Unavailable",
        "The server is busy with other requests of the web page. Try again in a moment.",
    )
}

/// Applies the bounds to an arbitrary command.
pub(super) fn fuzz_command(given: nilometer_bson::DocRef<'_>) {
    // The result does not matter.
    drop(command::bounded(given, "db"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_host_names_are_refused() {
        let web = Web::new(vec!["Metrics.Example".to_owned()]);
        for host in [
            "localhost",
            "LOCALHOST:28080",
            "127.0.0.1:1",
            "192.168.1.7",
            "[::1]:28080",
            "a.localhost",
            "metrics.example:80",
            "localhost:",
            "localhost.:65535",
            "[::1]",
        ] {
            assert!(web.is_ours(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "[evil]",
            "127.0.0.1:99999x",
            "127.0.0.1:99999",
            "127.0.0.1:+80",
            "127.0.0.1:80:80",
            "localhost:80/",
            "[::1]80",
            "[::1",
            "[::1]:x",
            "[127.0.0.1]",
            "[localhost]",
        ] {
            assert!(!web.is_ours(host), "{host}");
        }
    }

    #[test]
    fn passwords_from_another_machine_need_tls() {
        let database = Database::in_memory().unwrap();
        let web = Web::new(Vec::new());
        let body = doc! {"user": "root", "password": "wrong"};
        for (remote, is_tls, status) in [
            ("127.0.0.1:1", false, "401"),
            ("192.168.1.7:1", false, "403"),
            ("192.168.1.7:1", true, "401"),
        ] {
            let address: SocketAddr = remote.parse().unwrap();
            let client = ClientMetadata {
                remote: remote.to_owned(),
                same_machine: address.ip().is_loopback(),
                ..ClientMetadata::default()
            };
            let asker = WebRequest {
                database: &database,
                client,
                id: -1,
                is_tls,
                token: None,
            };
            let answer = web.log_in(&asker, body.as_ref()).unwrap_err();
            assert!(answer.status().starts_with(status), "{answer:?}");
        }
    }

    #[test]
    fn a_cookie_is_found_among_others() {
        let all = "a=1; nilometer_1=token; nilometer_12=other";
        assert_eq!(value_of(all, "nilometer_1"), Some("token"));
        assert_eq!(value_of(all, "nilometer_2"), None);
        assert_eq!(WebRequest::cookie_name("[::1]:28080"), "nilometer_28080");
    }
}
