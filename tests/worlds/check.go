// SPDX-License-Identifier: Apache-2.0

package worlds

import (
	"flag"
	"testing"

	"pgregory.net/rapid"
)

// Check holds a property against random worlds as Any draws them: as many as -rapid.checks says, with -short a fifth of them.
// rapid.Check alone is content with fewer when the test's deadline nears.
func Check(t *testing.T, copies bool, property func(*rapid.T, World)) {
	t.Helper()
	held := 0
	rapid.Check(t, func(t *rapid.T) {
		property(t, Any(t, copies))
		held++
	})
	if want := checks(t); held < want {
		t.Errorf("%d worlds in the time that -timeout gives, want %d", held, want)
	}
}

func checks(t *testing.T) int {
	t.Helper()
	value, ok := flag.Lookup("rapid.checks").Value.(flag.Getter)
	if !ok {
		t.Fatal("rapid does not say how many worlds are wanted")
	}
	n, ok := value.Get().(int)
	if !ok {
		t.Fatalf("rapid.checks is %v, want a number", value)
	}
	if testing.Short() {
		n /= 5
	}
	return n
}
