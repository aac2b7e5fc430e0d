//go:build race

package omni

const raceEnabled = true
