package iam

import (
	"context"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"io"
	"strings"

	"golang.org/x/crypto/argon2"

	"github.com/bettercompute/bc/appliance"
)

// Argon2id's cost: 19 MiB, 2 passes, 1 lane (OWASP Password Storage Cheat
// Sheet). A stored password names its own, so these can rise.
const (
	argonMemoryKiB = 19 * 1024
	argonPasses    = 2
	argonLanes     = 1
	argonSaltBytes = 16
	argonHashBytes = 32
)

// hashing bounds how many passwords are hashed at once, and with it the memory:
// two take 38 MiB. More logins wait.
var hashing = make(chan struct{}, 2)

// noPassword is checked in place of a password that does not exist, so that an
// unknown user takes as long as a known one. No password matches it.
var noPassword = encodePassword(argonMemoryKiB, argonPasses, argonLanes,
	make([]byte, argonSaltBytes), make([]byte, argonHashBytes))

// HashPassword is what is kept of a password: its argon2id hash in the usual
// text form, $argon2id$v=19$m=…,t=…,p=…$salt$hash. It waits while others hash,
// until ctx ends; then it is UNAVAILABLE.
func HashPassword(ctx context.Context, password string, random io.Reader) (string, error) {
	salt := make([]byte, argonSaltBytes)
	if _, err := io.ReadFull(random, salt); err != nil {
		return "", fmt.Errorf("make a salt: %w", err)
	}
	hash, err := argon(ctx, password, salt, argonPasses, argonMemoryKiB, argonLanes, argonHashBytes)
	if err != nil {
		return "", err
	}
	return encodePassword(argonMemoryKiB, argonPasses, argonLanes, salt, hash), nil
}

// IsPassword tells whether stored is the password's hash. With stored "", for a
// user that does not exist or has no password, it takes the same time and says
// no. A stored text that cannot be read is an error of ours.
func IsPassword(ctx context.Context, password, stored string) (bool, error) {
	if stored == "" {
		stored = noPassword
	}
	memory, passes, lanes, salt, want, err := decodePassword(stored)
	if err != nil {
		return false, err
	}
	got, err := argon(ctx, password, salt, passes, memory, lanes, uint32(len(want)))
	if err != nil {
		return false, err
	}
	return subtle.ConstantTimeCompare(got, want) == 1, nil
}

func argon(ctx context.Context, password string, salt []byte, passes, memory uint32, lanes uint8, size uint32) ([]byte, error) {
	select {
	case hashing <- struct{}{}:
		defer func() { <-hashing }()
	case <-ctx.Done():
		return nil, appliance.Refuse(appliance.Unavailable, "", "too many sign-ins at once; try again in a moment").Because(ctx.Err())
	}
	return argon2.IDKey([]byte(password), salt, passes, memory, lanes, size), nil
}

func encodePassword(memory, passes uint32, lanes uint8, salt, hash []byte) string {
	b64 := base64.RawStdEncoding
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, memory, passes, lanes,
		b64.EncodeToString(salt), b64.EncodeToString(hash))
}

// decodePassword reads the text form, within bounds (1 GiB, 16 passes, 16
// lanes) that keep a damaged row from stopping the server.
func decodePassword(stored string) (memory, passes uint32, lanes uint8, salt, hash []byte, err error) {
	bad := func(what string) (uint32, uint32, uint8, []byte, []byte, error) {
		return 0, 0, 0, nil, nil, fmt.Errorf("stored password: %s", what)
	}
	part := strings.Split(stored, "$")
	if len(part) != 6 || part[0] != "" || part[1] != "argon2id" || part[2] != fmt.Sprintf("v=%d", argon2.Version) {
		return bad("not argon2id of version 19")
	}
	if _, err := fmt.Sscanf(part[3], "m=%d,t=%d,p=%d", &memory, &passes, &lanes); err != nil {
		return bad("unreadable cost")
	}
	if memory == 0 || memory > 1<<20 || passes == 0 || passes > 16 || lanes == 0 || lanes > 16 {
		return bad("cost out of bounds")
	}
	b64 := base64.RawStdEncoding.Strict()
	if salt, err = b64.DecodeString(part[4]); err != nil || len(salt) < 8 {
		return bad("unreadable salt")
	}
	if hash, err = b64.DecodeString(part[5]); err != nil || len(hash) < 16 || len(hash) > 64 {
		return bad("unreadable hash")
	}
	return memory, passes, lanes, salt, hash, nil
}
