"""The live page: it shows a policy that acts in its task, and the policy's search for z* while it acts."""
