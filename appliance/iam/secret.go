package iam

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"io"
	"strings"

	"github.com/bettercompute/bc/appliance"
)

// Prefixes of secrets, which say what a string found somewhere is good for.
const (
	APIKeySecret   = "bck_"
	NodeSecret     = "bcn_"
	JoinSecret     = "bcj_" // join tokens
	LoginSecret    = "bcl_" // one-time login links
	SessionSecret  = "bcs_" // console sessions
	secretRandom   = 36     // bytes; with the checksum 40, which base32 writes without padding
	secretChecksum = 4
)

var secretPrefixes = []string{APIKeySecret, NodeSecret, JoinSecret, LoginSecret, SessionSecret}

// Lower case without i, l, o, u, as in the ULIDs of ids.
var secretText = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// NewSecret makes a secret: the prefix, then 64 characters that hold 36 random
// bytes and a CRC-32 of the prefix and them, so that a mistyped or cut secret
// is told from a wrong one without looking it up. The hash is what to keep; the
// secret is shown once and kept nowhere. It fails only if random does.
func NewSecret(prefix string, random io.Reader) (secret, hash string, err error) {
	b := make([]byte, secretRandom, secretRandom+secretChecksum)
	if _, err := io.ReadFull(random, b); err != nil {
		return "", "", fmt.Errorf("make a secret: %w", err)
	}
	b = binary.BigEndian.AppendUint32(b, checksum(prefix, b))
	secret = prefix + secretText.EncodeToString(b)
	return secret, HashSecret(secret), nil
}

// ParseSecret gives the prefix of a well-formed secret. Anything else is
// refused as UNAUTHENTICATED in words that do not repeat it.
func ParseSecret(secret string) (prefix string, err error) {
	for _, p := range secretPrefixes {
		rest, ok := strings.CutPrefix(secret, p)
		if !ok {
			continue
		}
		b, err := secretText.DecodeString(rest)
		// The decoder passes over line ends and surplus bits.
		if err != nil || len(b) != secretRandom+secretChecksum || secretText.EncodeToString(b) != rest ||
			binary.BigEndian.Uint32(b[secretRandom:]) != checksum(p, b[:secretRandom]) {
			return "", appliance.Refuse(appliance.Unauthenticated, "", "the %s credential is mistyped or cut short", p)
		}
		return p, nil
	}
	return "", appliance.Refuse(appliance.Unauthenticated, "", "not a credential: they start with %s", strings.Join(secretPrefixes, ", "))
}

func checksum(prefix string, random []byte) uint32 {
	return crc32.Update(crc32.ChecksumIEEE([]byte(prefix)), crc32.IEEETable, random)
}

// HashSecret is what is kept of a secret: SHA-256 in hexadecimal. A slow hash
// would add nothing to 288 random bits.
func HashSecret(secret string) string {
	h := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(h[:])
}

// IsSecret tells whether the hash is the secret's, in a time that does not tell
// how much of it is right.
func IsSecret(secret, hash string) bool {
	return subtle.ConstantTimeCompare([]byte(HashSecret(secret)), []byte(hash)) == 1
}
