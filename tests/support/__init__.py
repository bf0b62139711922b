"""What the proofs share: broker processes and a raw wire that is encoded independently of Moldau."""
