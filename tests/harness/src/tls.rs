//! A certificate authority for one test, and a server certificate signed by it.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// What the certificate of a server is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Certificate {
    /// Good for `localhost` and 127.0.0.1, now.
    Good,
    /// Good for another name.
    OtherName,
    /// Good for the right names, until some years ago.
    Expired,
}

/// The PEM files that a server with TLS is started with.
pub struct Tls {
    pub ca: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Tls {
    /// Writes the files into `dir`.
    pub fn generate(dir: &Path, kind: Certificate) -> Result<Self, rcgen::Error> {
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.distinguished_name.push(DnType::CommonName, "redquorum test authority");
        let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate()?)?;

        let key = KeyPair::generate()?;
        let names = match kind {
            Certificate::Good | Certificate::Expired => vec!["localhost".to_owned(), "127.0.0.1".to_owned()],
            Certificate::OtherName => vec!["elsewhere.example".to_owned()],
        };
        let mut certificate = CertificateParams::new(names)?;
        if kind == Certificate::Expired {
            certificate.not_after = rcgen::date_time_ymd(2020, 1, 1);
        }
        let certificate = certificate.signed_by(&key, &ca)?;

        let write = |name: &str, pem: String| {
            let path = dir.join(name);
            fs::write(&path, pem).unwrap_or_else(|error| panic!("write {}: {error}", path.display()));
            path
        };
        Ok(Self {
            ca: write("ca.pem", ca.pem()),
            certificate: write("server.pem", certificate.pem()),
            key: write("server.key", key.serialize_pem()),
        })
    }
}
