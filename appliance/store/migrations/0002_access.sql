CREATE TABLE users (
  id            TEXT PRIMARY KEY,
  tenant_id     TEXT NOT NULL REFERENCES tenants(id),
  name          TEXT NOT NULL, -- what the person signs in with
  role          TEXT NOT NULL,
  password_hash TEXT NOT NULL, -- argon2id; empty: signs in by login links
  created_at    INTEGER NOT NULL,
  last_login_at INTEGER,
  disabled_at   INTEGER,
  UNIQUE (tenant_id, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX users_by_name ON users(name);

-- Good once, until expires_at. subject is a user, or operator for the local one.
CREATE TABLE login_links (
  token_hash TEXT PRIMARY KEY,
  subject    TEXT NOT NULL,
  expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE access_policies (
  tenant_id  TEXT NOT NULL REFERENCES tenants(id),
  name       TEXT NOT NULL,
  cedar      TEXT NOT NULL, -- as given
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  PRIMARY KEY (tenant_id, name)
) STRICT, WITHOUT ROWID;
