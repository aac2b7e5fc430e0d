package rows

import "testing"

func TestChosenHugePages(t *testing.T) {
	for text, want := range map[string]string{
		"always [madvise] never\n": "madvise", "[always] madvise never\n": "always", "always madvise [never]\n": "never",
		"": "", "always madvise never": "", "[never": "",
	} {
		if got := chosen(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
