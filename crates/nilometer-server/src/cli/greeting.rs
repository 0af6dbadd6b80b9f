//! The message for a terminal when the server is ready: version, data directory, how to connect, how to watch, how to
//! stop. The log is not affected. Nothing is printed without a terminal, as under systemd.

use std::fmt::Write;
use std::net::SocketAddr;

use super::Storage;

/// The content of the message.
pub(super) struct Greeting<'a> {
    pub(super) data: &'a Storage,
    pub(super) address: Option<SocketAddr>,
    pub(super) http: Option<SocketAddr>,
    pub(super) has_page: bool,
    pub(super) is_tls: bool,
    pub(super) asks_for_logins: bool,
}

impl Greeting<'_> {
    /// Formats five lines.
    pub(super) fn text(&self) -> String {
        let mut out = format!(
            "Nilometer {}: a database for time series that speaks MongoDB's wire protocol\n",
            crate::VERSION
        );
        let tls = if self.is_tls { "--tls " } else { "" };
        let user = if self.asks_for_logins { "-u USER " } else { "" };
        let data = match self.data {
            Storage::Directory(path) => {
                let whole = path.canonicalize();
                whole.as_deref().unwrap_or(path).display().to_string()
            }
            Storage::Objects(storage) => storage.to_string(),
        };
        let address = self.address.map(reachable).unwrap_or_default();
        // Writing to a String does not fail.
        let _ = writeln!(out, "  data      {data}");
        let _ = writeln!(out, "  connect   mongosh {tls}{user}mongodb://{address}");
        let _ = match (self.http, self.has_page) {
            (None, _) => writeln!(
                out,
                "  watch     --httpPort PORT for metrics, with --webPage for a web page"
            ),
            (Some(http), has_page) => {
                let scheme = if self.is_tls { "https" } else { "http" };
                let path = if has_page { "" } else { "metrics" };
                writeln!(out, "  watch     {scheme}://{}/{path}", reachable(http))
            }
        };
        let _ = writeln!(out, "  stop      Ctrl+C; no acknowledged write is lost");
        out
    }
}

/// Returns the address as seen from this machine.
fn reachable(address: SocketAddr) -> String {
    if address.ip().is_unspecified() {
        return format!("localhost:{}", address.port());
    }
    address.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_lines_say_where_and_how() {
        let mut greeting = Greeting {
            data: &Storage::Directory("/no/such/place".into()),
            address: "127.0.0.1:27017".parse().ok(),
            http: None,
            has_page: false,
            is_tls: false,
            asks_for_logins: false,
        };
        let text = greeting.text();
        assert_eq!(text.lines().count(), 5, "{text}");
        assert!(text.contains("  data      /no/such/place\n"), "{text}");
        assert!(
            text.contains("mongosh mongodb://127.0.0.1:27017\n"),
            "{text}"
        );
        greeting.address = "0.0.0.0:5".parse().ok();
        greeting.http = "127.0.0.1:6".parse().ok();
        (greeting.is_tls, greeting.asks_for_logins) = (true, true);
        let text = greeting.text();
        assert_eq!(text.lines().count(), 5, "{text}");
        assert!(
            text.contains("mongosh --tls -u USER mongodb://localhost:5\n"),
            "{text}"
        );
        assert!(text.contains("https://127.0.0.1:6/metrics\n"), "{text}");
    }
}
