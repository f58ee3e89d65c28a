//! A TCP proxy with faults at the flick of a switch.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

/// What a proxy does with what passes through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Pass,
    /// Keeps everything back, in both directions, until the mode changes.
    Hold,
    /// Passes requests on and drops their replies.
    DropReplies,
    /// Closes all connections and refuses new ones.
    Refuse,
}

/// One proxy. It ends with the runtime.
pub struct Proxy {
    port: u16,
    mode: watch::Sender<Mode>,
}

impl Proxy {
    /// A proxy on a free port of the loopback, in front of `target` (host and port).
    pub async fn start(target: String) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let mode = watch::Sender::new(Mode::Pass);
        tokio::spawn(listen(listener, target, mode.subscribe()));
        Ok(Self { port, mode })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

async fn listen(
    mut listener: TcpListener,
    target: String,
    mut mode: watch::Receiver<Mode>,
) -> io::Result<()> {
    let address = listener.local_addr()?;
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (client, _) = accepted?;
                let (target, mode) = (target.clone(), mode.clone());
                tokio::spawn(async move { carry(client, TcpStream::connect(target).await?, mode).await });
            }
            Ok(()) = mode.changed() => if *mode.borrow_and_update() == Mode::Refuse {
                // Bound but not listening, the port is kept, and whoever knocks is refused.
                drop(listener);
                let socket = bind(address)?;
                let _ = mode.wait_for(|mode| *mode != Mode::Refuse).await;
                listener = socket.listen(64)?;
            },
        }
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Carries bytes both ways until one side closes, or until it could not go on without being noticed.
async fn carry(
    mut client: TcpStream,
    mut server: TcpStream,
    mut mode: watch::Receiver<Mode>,
) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut request, mut reply) = ([0; 4096], [0; 4096]);
    let mut dropped = false;
    loop {
        let now = *mode.borrow_and_update();
        // After a dropped reply, the next one would be taken for it.
        if now == Mode::Refuse || (now != Mode::DropReplies && dropped) {
            return Ok(());
        }
        tokio::select! {
            changed = mode.changed() => if changed.is_err() {
                return Ok(());
            },
            read = client.read(&mut request), if now != Mode::Hold => match read? {
                0 => return Ok(()),
                length => server.write_all(&request[..length]).await?,
            },
            read = server.read(&mut reply), if now != Mode::Hold => match read? {
                0 => return Ok(()),
                _ if now == Mode::DropReplies => dropped = true,
                length => client.write_all(&reply[..length]).await?,
            },
        }
    }
}
