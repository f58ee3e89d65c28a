//! A TCP proxy that passes everything on, a little later: one slow node, without touching the server.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// Pieces under way in one direction; then reading pauses.
const UNDER_WAY: usize = 1024;

/// Starts one before `target` (host and port), and returns its port. It ends with the runtime.
pub async fn start(target: String, delay: Duration) -> io::Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let target = target.clone();
            tokio::spawn(async move {
                let server = TcpStream::connect(target).await?;
                client.set_nodelay(true)?;
                server.set_nodelay(true)?;
                let ((from_client, to_client), (from_server, to_server)) =
                    (client.into_split(), server.into_split());
                // All of it on the way back: a request is not held up, so that the server is not the slower for it.
                tokio::spawn(carry(from_client, to_server, Duration::ZERO));
                carry(from_server, to_client, delay).await
            });
        }
    });
    Ok(port)
}

/// This is latency, not a narrow pipe: what comes together goes together.
async fn carry(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin + Send + 'static,
    delay: Duration,
) -> io::Result<()> {
    let (sender, mut queue) = mpsc::channel::<(Instant, Vec<u8>)>(UNDER_WAY);
    tokio::spawn(async move {
        while let Some((due, bytes)) = queue.recv().await {
            sleep_until(due).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
        let _ = to.shutdown().await;
    });
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let length = from.read(&mut bytes).await?;
        if length == 0 || sender.send((Instant::now() + delay, bytes[..length].to_vec())).await.is_err() {
            return Ok(());
        }
    }
}
