//! A certificate authority for one test, and a server certificate signed by it.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// The PEM files that a server with TLS is started with.
pub struct Tls {
    pub ca: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Tls {
    /// Writes the files into `dir`. The certificate is good for `localhost` and 127.0.0.1.
    pub fn generate(dir: &Path) -> Result<Self, rcgen::Error> {
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.distinguished_name.push(DnType::CommonName, "redquorum test authority");
        let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate()?)?;

        let key = KeyPair::generate()?;
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let certificate = CertificateParams::new(names)?.signed_by(&key, &ca)?;

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
