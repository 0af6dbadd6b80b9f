//! A port in front of a server, whose connections a test cuts.

use std::collections::BTreeMap;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Forwards connections to a port, until they are cut.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    state: Arc<ProxyState>,
}

#[derive(Default)]
struct ProxyState {
    target: AtomicU16,
    is_cut: AtomicBool,
    last: AtomicU64,
    open: Mutex<BTreeMap<u64, [TcpStream; 2]>>,
}

impl Proxy {
    pub(crate) fn start(target: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let state = Arc::new(ProxyState {
            target: AtomicU16::new(target),
            ..ProxyState::default()
        });
        let proxy = Self {
            port,
            state: Arc::clone(&state),
        };
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if state.is_cut.load(Ordering::Acquire) {
                    continue;
                }
                let target = state.target.load(Ordering::Acquire);
                if let Ok(to) = TcpStream::connect(("127.0.0.1", target)) {
                    // Without files for it the client connects again.
                    let _ = state.forward(stream, to);
                }
            }
        });
        proxy
    }

    /// Forwards connections to another port from now on.
    pub(crate) fn aim(&self, target: u16) {
        self.state.target.store(target, Ordering::Release);
    }

    /// Ends all connections, and takes no other until it is mended.
    pub(crate) fn cut(&self) {
        self.state.is_cut.store(true, Ordering::Release);
        let open = std::mem::take(&mut *self.state.open.lock().expect("no panic"));
        for stream in open.into_values().flatten() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn mend(&self) {
        self.state.is_cut.store(false, Ordering::Release);
    }
}

impl ProxyState {
    fn forward(self: &Arc<Self>, one: TcpStream, other: TcpStream) -> std::io::Result<()> {
        let id = self.last.fetch_add(1, Ordering::Relaxed);
        let both = [one.try_clone()?, other.try_clone()?];
        let ways = [(one.try_clone()?, other.try_clone()?), (other, one)];
        self.open.lock().expect("no panic").insert(id, both);
        for (mut from, mut to) in ways {
            let state = Arc::clone(self);
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Both);
                state.open.lock().expect("no panic").remove(&id);
            });
        }
        Ok(())
    }
}
