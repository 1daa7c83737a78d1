//! DescribeUserScramCredentials (50) and AlterUserScramCredentials (51). Credentials are kept as Kafka keeps them: keys that follow
//! from the salted password, not the password. There is no SASL yet that would ask for them.

use std::collections::{BTreeMap, BTreeSet};

use kafka_protocol::messages::alter_user_scram_credentials_response::AlterUserScramCredentialsResult;
use kafka_protocol::messages::describe_user_scram_credentials_response::{
    CredentialInfo, DescribeUserScramCredentialsResult,
};
use kafka_protocol::messages::{
    AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse, DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
};
use kafka_protocol::protocol::StrBytes;
use sha2::{Digest, Sha256, Sha512};

use super::{ErrorCode, RequestContext};
use crate::cluster::{AdminError, ClusterHandle, ConfigKind, Intent};

/// How often a password is to be hashed, as Kafka bounds it for both mechanisms.
const ITERATIONS_MIN: i32 = 4096;
const ITERATIONS_MAX: i32 = 16_384;

/// A user that is not told of, or not changed.
type Refused = (ErrorCode, &'static str);

/// What is to become of credentials: what is to be kept, or nothing.
type Changes = Vec<(Mechanism, Option<String>)>;

/// Iterations, salt and salted password of a credential to be kept.
type Given<'a> = Option<(i32, &'a [u8], &'a [u8])>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mechanism {
    Sha256 = 1,
    Sha512 = 2,
}

impl Mechanism {
    const ALL: [Self; 2] = [Self::Sha256, Self::Sha512];

    fn of(number: i8) -> Option<Self> {
        Self::ALL.into_iter().find(|mechanism| *mechanism as i8 == number)
    }

    /// What a credential is called among a user's settings.
    fn key(self) -> &'static str {
        match self {
            Self::Sha256 => "SCRAM-SHA-256",
            Self::Sha512 => "SCRAM-SHA-512",
        }
    }

    /// What is kept of a salted password (RFC 5802).
    fn credential(self, salt: &[u8], salted_password: &[u8], iterations: i32) -> String {
        let (client_key, server_key) = match self {
            Self::Sha256 => {
                (hmac::<Sha256>(64, salted_password, b"Client Key"), hmac::<Sha256>(64, salted_password, b"Server Key"))
            }
            Self::Sha512 => (
                hmac::<Sha512>(128, salted_password, b"Client Key"),
                hmac::<Sha512>(128, salted_password, b"Server Key"),
            ),
        };
        let stored_key = match self {
            Self::Sha256 => Sha256::digest(&client_key).to_vec(),
            Self::Sha512 => Sha512::digest(&client_key).to_vec(),
        };
        let (salt, stored, server) = (base64(salt), base64(&stored_key), base64(&server_key));
        format!("salt={salt},stored_key={stored},server_key={server},iterations={iterations}")
    }
}

/// HMAC (RFC 2104) over a hash that works on blocks of so many bytes.
fn hmac<D: Digest>(block_bytes: usize, key: &[u8], message: &[u8]) -> Vec<u8> {
    let mut padded = if key.len() > block_bytes { D::digest(key).to_vec() } else { key.to_vec() };
    padded.resize(block_bytes, 0);
    let pad = |with: u8| padded.iter().map(|byte| byte ^ with).collect::<Vec<_>>();
    let inner = D::new().chain_update(pad(0x36)).chain_update(message).finalize();
    D::new().chain_update(pad(0x5c)).chain_update(inner).finalize().to_vec()
}

/// Base64 (RFC 4648) with padding.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let at = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..4 {
            let letter = ALPHABET[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= group.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

/// The credentials among a user's settings: mechanism and iterations.
fn credentials(config: &BTreeMap<String, String>) -> Vec<CredentialInfo> {
    let of = |mechanism: Mechanism| {
        let fields = config.get(mechanism.key())?.split(',');
        let iterations = fields.filter_map(|field| field.strip_prefix("iterations=")).next()?.parse().ok()?;
        Some(CredentialInfo::default().with_mechanism(mechanism as i8).with_iterations(iterations))
    };
    Mechanism::ALL.into_iter().filter_map(of).collect()
}

/// Says of which users there are credentials.
pub(crate) async fn describe(
    context: &RequestContext,
    request: DescribeUserScramCredentialsRequest,
) -> DescribeUserScramCredentialsResponse {
    let response = DescribeUserScramCredentialsResponse::default().with_error_message(None);
    let all = match context.broker.cluster.configs(ConfigKind::User).await {
        Ok(all) => all,
        Err(error) => {
            let code = ErrorCode::UnknownServerError.number();
            return response.with_error_code(code).with_error_message(Some(super::told(error)));
        }
    };
    let mut known: BTreeMap<String, Vec<CredentialInfo>> = BTreeMap::new();
    for (user, config) in &all {
        let credentials = credentials(config);
        if let (Some(user), false) = (user, credentials.is_empty()) {
            known.insert(user.clone(), credentials);
        }
    }
    let users: Vec<String> = match request.users {
        Some(users) if !users.is_empty() => users.into_iter().map(|user| user.name.to_string()).collect(),
        _ => known.keys().cloned().collect(),
    };
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for user in &users {
        *counts.entry(user).or_default() += 1;
    }
    let mut results = Vec::new();
    for user in &users {
        let result = DescribeUserScramCredentialsResult::default().with_user(StrBytes::from_string(user.clone()));
        let result = result.with_error_message(None);
        let refused = |code: ErrorCode, message: String| {
            result.clone().with_error_code(code.number()).with_error_message(Some(super::told(message)))
        };
        results.push(match (counts.remove(user.as_str()), known.get(user)) {
            (None, _) => continue,
            (Some(1), Some(credentials)) => result.with_credential_infos(credentials.clone()),
            (Some(1), None) => refused(
                ErrorCode::ResourceNotFound,
                format!("Attempt to describe a user credential that does not exist: {user}"),
            ),
            (Some(_), _) => {
                let what = "Cannot describe SCRAM credentials for the same user twice in a single request";
                refused(ErrorCode::DuplicateResource, format!("{what}: {user}"))
            }
        });
    }
    response.with_results(results)
}

/// Sets and deletes credentials, those of each user at once.
pub(crate) async fn alter(
    context: &RequestContext,
    request: AlterUserScramCredentialsRequest,
) -> AlterUserScramCredentialsResponse {
    // What is to become of each credential of each user, or why nothing does.
    let mut wanted: BTreeMap<StrBytes, Result<Changes, Refused>> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let mut want = |user: &StrBytes, number: i8, value: Result<Given<'_>, Refused>| {
        let entry = wanted.entry(user.clone()).or_insert_with(|| Ok(Vec::new()));
        let checked = match (Mechanism::of(number), value) {
            _ if user.is_empty() => Err((ErrorCode::UnacceptableCredential, "Username must not be empty")),
            (None, _) => Err((ErrorCode::UnsupportedSaslMechanism, "Unknown SCRAM mechanism")),
            (Some(mechanism), _) if !seen.insert((user.clone(), mechanism)) => {
                let message = "A user credential cannot be altered twice in the same request";
                Err((ErrorCode::DuplicateResource, message))
            }
            (Some(_), Err(refused)) => Err(refused),
            (Some(mechanism), Ok(value)) => {
                let kept = value.map(|(iterations, salt, salted)| mechanism.credential(salt, salted, iterations));
                Ok((mechanism, kept))
            }
        };
        match (entry, checked) {
            (Ok(all), Ok(one)) => all.push(one),
            (entry @ Ok(_), Err(refused)) => *entry = Err(refused),
            (Err(_), _) => {}
        }
    };
    for deletion in &request.deletions {
        want(&deletion.name, deletion.mechanism, Ok(None));
    }
    for upsertion in &request.upsertions {
        let value = match upsertion.iterations {
            ..ITERATIONS_MIN => Err((ErrorCode::UnacceptableCredential, "Too few iterations")),
            ITERATIONS_MIN..=ITERATIONS_MAX => {
                Ok(Some((upsertion.iterations, &upsertion.salt[..], &upsertion.salted_password[..])))
            }
            _ => Err((ErrorCode::UnacceptableCredential, "Too many iterations")),
        };
        want(&upsertion.name, upsertion.mechanism, value);
    }
    let mut results = Vec::with_capacity(wanted.len());
    for (user, wanted) in wanted {
        let altered = match wanted {
            Ok(changes) => apply(&context.broker.cluster, &user, &changes).await,
            Err((code, message)) => Err((code, message.to_owned())),
        };
        let result = AlterUserScramCredentialsResult::default().with_user(user);
        results.push(match altered {
            Ok(()) => result.with_error_message(None),
            Err((code, message)) => {
                result.with_error_code(code.number()).with_error_message(Some(super::told(message)))
            }
        });
    }
    AlterUserScramCredentialsResponse::default().with_results(results)
}

async fn apply(
    cluster: &ClusterHandle,
    user: &str,
    changes: &[(Mechanism, Option<String>)],
) -> Result<(), (ErrorCode, String)> {
    let change = |before: &BTreeMap<String, String>| {
        let mut after = before.clone();
        for (mechanism, kept) in changes {
            let key = mechanism.key().to_owned();
            let was_there = match kept {
                Some(kept) => {
                    after.insert(key, kept.clone());
                    true
                }
                None => after.remove(&key).is_some(),
            };
            if !was_there {
                let message = "Attempt to delete a user credential that does not exist";
                return Err(AdminError::NotFound(message.to_owned()));
            }
        }
        Ok(after)
    };
    let changed = cluster.change_config(ConfigKind::User, Some(user), Intent::Apply, &change).await;
    changed.map_err(|error| (error.code(), error.to_string()))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use kafka_protocol::messages::alter_user_scram_credentials_request::{
        ScramCredentialDeletion, ScramCredentialUpsertion,
    };
    use kafka_protocol::messages::describe_user_scram_credentials_request::UserName;

    use super::*;
    use crate::api::ApiKey;
    use crate::api::admin_tests::{broker, context, name};
    use crate::api::tests::encodes;
    use crate::broker::Broker;

    #[test]
    fn keys_are_made_as_the_standards_have_it() {
        let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let message = b"what do ya want for nothing?";
        assert_eq!(
            hex(hmac::<Sha256>(64, b"Jefe", message)),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert!(hex(hmac::<Sha512>(128, b"Jefe", message)).starts_with("164b7a7bfcf819e2e395fbe73b56e0a3"));
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    async fn told(broker: &Broker, users: Option<&[&str]>) -> Vec<(String, i16, Vec<(i8, i32)>)> {
        let user = |user: &&str| UserName::default().with_name(name(user));
        let request = DescribeUserScramCredentialsRequest::default()
            .with_users(users.map(|users| users.iter().map(user).collect()));
        let response = describe(&context(broker, 0), request).await;
        encodes(ApiKey::DescribeUserScramCredentials, &response, 0);
        let of = |result: &DescribeUserScramCredentialsResult| {
            let infos = result.credential_infos.iter().map(|info| (info.mechanism, info.iterations)).collect();
            (result.user.to_string(), result.error_code, infos)
        };
        response.results.iter().map(of).collect()
    }

    async fn ask(broker: &Broker, set: &[(&str, i8, i32)], delete: &[(&str, i8)]) -> Vec<(String, i16)> {
        let upsertion = |&(user, mechanism, iterations): &(&str, i8, i32)| {
            ScramCredentialUpsertion::default()
                .with_name(name(user))
                .with_mechanism(mechanism)
                .with_iterations(iterations)
                .with_salt(Bytes::from_static(b"salt"))
                .with_salted_password(Bytes::from_static(b"salted password"))
        };
        let deletion = |&(user, mechanism): &(&str, i8)| {
            ScramCredentialDeletion::default().with_name(name(user)).with_mechanism(mechanism)
        };
        let request = AlterUserScramCredentialsRequest::default()
            .with_upsertions(set.iter().map(upsertion).collect())
            .with_deletions(delete.iter().map(deletion).collect());
        let response = alter(&context(broker, 0), request).await;
        encodes(ApiKey::AlterUserScramCredentials, &response, 0);
        response.results.iter().map(|result| (result.user.to_string(), result.error_code)).collect()
    }

    #[tokio::test]
    async fn credentials_are_kept_told_and_deleted_and_mistakes_have_kafkas_codes() {
        let (broker, _dir) = broker().await;
        assert_eq!(told(&broker, None).await, []);
        let one = |user: &str, code| vec![(user.to_owned(), code)];
        assert_eq!(ask(&broker, &[("u", 1, 4096), ("u", 2, 16_384)], &[]).await, one("u", 0));
        assert_eq!(told(&broker, None).await, [("u".to_owned(), 0, vec![(1, 4096), (2, 16_384)])]);
        let both = told(&broker, Some(&["u", "v", "u"])).await;
        assert_eq!(both, [("u".to_owned(), 92, vec![]), ("v".to_owned(), 91, vec![])]);
        for (set, delete, code) in [
            (vec![("u", 1, 4095)], vec![], 93),
            (vec![("u", 1, 16_385)], vec![], 93),
            (vec![("u", 3, 5000)], vec![], 33),
            (vec![("u", 1, 5000)], vec![("u", 1)], 92),
            // Nothing of a user is changed if something cannot be.
            (vec![("u", 1, 5000)], vec![("u", 9)], 33),
            (vec![], vec![("v", 1)], 91),
            (vec![("", 1, 5000)], vec![], 93),
        ] {
            let told = ask(&broker, &set, &delete).await;
            assert_eq!(told[0].1, code, "{set:?} {delete:?}");
        }
        assert_eq!(told(&broker, Some(&["u"])).await[0].2, [(1, 4096), (2, 16_384)]);
        assert_eq!(ask(&broker, &[], &[("u", 1), ("u", 2)]).await, one("u", 0));
        assert_eq!(told(&broker, None).await, []);
        broker.shutdown().await.unwrap();
    }
}
