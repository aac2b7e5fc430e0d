// Package gpu carries out what core decided, on raw streams.
package gpu
